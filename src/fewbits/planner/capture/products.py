"""Products, convolutions, attention and embeddings: their spaces and their FLOP."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from torch.fx import Node

from fewbits.planner.capture.arguments import argument, extents, integers, tensors
from fewbits.planner.capture.draft import Draft, Names, Use, leading_names


def shape_of(node: Node) -> tuple[int, ...]:
    """Return the shape of the tensor that a node is."""
    return tuple(int(n) for n in node.meta["val"].shape)


def _product(uses: list[Use], output: Names, shape: tuple[int, ...]) -> Draft:
    draft = Draft("product", uses, [output], {}, product=True)
    draft.run_along(shape, output)
    for use in uses:
        draft.run_along(shape_of(use.node), use.dims)
    draft.flops = 2.0 * math.prod(draft.extents.values())
    return draft


def linear(node: Node) -> Draft:
    """``y[..., n] = x[..., k] w[n, k] + bias[n]``."""
    x, weight, *bias = tensors(node)
    leading = leading_names(len(shape_of(x)) - 1)
    uses = [Use(x, (*leading, "k")), Use(weight, ("n", "k")), *(Use(b, ("n",)) for b in bias)]
    return _product(uses, (*leading, "n"), extents(node)[0])


def addmm(node: Node) -> Draft:
    """``y[b, n] = bias[n] + x[b, k] w[k, n]``."""
    bias, x, weight = tensors(node)
    added = aligned(shape_of(bias), ("b", "n"), extents(node)[0])
    return _product(
        [Use(bias, added), Use(x, ("b", "k")), Use(weight, ("k", "n"))], ("b", "n"), extents(node)[0]
    )


def matmul(node: Node) -> Draft:
    """``y[..., m, n] = x[..., m, k] w[..., k, n]``, with what ``torch.matmul`` broadcasts and leaves out."""
    x, y = tensors(node)
    left, right, out = shape_of(x), shape_of(y), extents(node)[0]
    inner = (("m",) if len(left) > 1 else ()) + (("n",) if len(right) > 1 else ())
    leading = leading_names(len(out) - len(inner))
    output: Names = (*leading, *inner)
    last_left: Names = ("m", "k") if len(left) > 1 else ("k",)
    last_right: Names = ("k", "n") if len(right) > 1 else ("k",)
    ahead = out[: len(leading)]
    return _product(
        [
            Use(x, (*aligned(left[: -len(last_left)], leading, ahead), *last_left)),
            Use(y, (*aligned(right[: -len(last_right)], leading, ahead), *last_right)),
        ],
        output,
        out,
    )


def einsum(node: Node) -> Draft | None:
    """Letters are dimensions; None where a letter stands twice in an operand, or dots stand for axes."""
    equation, operands = str(argument(node, 0, "equation")).replace(" ", ""), tensors(node)
    if "." in equation:
        return None
    if "->" not in equation:  # letters that stand once, in the order of the alphabet
        equation += "->" + "".join(sorted(c for c in set(equation) - {","} if equation.count(c) == 1))
    read, _, output = equation.partition("->")
    letters = read.split(",")
    if any(len(set(one)) != len(one) for one in (*letters, output)) or len(letters) != len(operands):
        return None
    draft = _product(
        [Use(x, tuple(one)) for x, one in zip(operands, letters, strict=True)],
        tuple(output),
        extents(node)[0],
    )
    if len(letters) > 2:
        draft.flops = _two_at_a_time(letters, output, draft.extents)
    return draft


def _two_at_a_time(letters: list[str], output: str, extents: Mapping[str, int]) -> float:
    """Return the FLOP of operands that are multiplied from left to right, each with what came before it."""
    held, flops = set(letters[0]), 0.0
    for place, one in enumerate(letters[1:], 2):
        space = held | set(one)
        held = space & {*output, *"".join(letters[place:])}  # the others are summed
        flops += (2.0 if held < space else 1.0) * math.prod(extents[letter] for letter in space)
    return flops


def aligned(shape: tuple[int, ...], dims: Names, whole: tuple[int, ...]) -> Names:
    """Return the dimensions of a tensor that is broadcast to ``whole``, whose axes run along ``dims``."""
    ahead = len(whole) - len(shape)
    return tuple(dims[ahead + i] if n == whole[ahead + i] and n > 1 else None for i, n in enumerate(shape))


_SPATIAL = {1: ("w",), 2: ("h", "w"), 3: ("t", "h", "w")}
_KERNEL = {1: ("s",), 2: ("r", "s"), 3: ("q", "r", "s")}


def convolution(node: Node) -> Draft:
    """``y[b, n, h, w] += x[b, c, h + r, w + s] w[n, c, r, s]``; groups are one dimension, g."""
    x, weight, *bias = tensors(node)
    given, kernel, out = shape_of(x), shape_of(weight), extents(node)[0]
    rank = len(kernel) - 2
    name = str(node.target)
    transposed = "transpose" in name or bool(name.startswith("aten.convolution") and argument(node, 6, ""))
    groups_at = 7 if transposed and "transpose" not in name else 6
    if name.startswith("aten.convolution"):
        groups_at = 8
    elif transposed:
        groups_at = 6
    groups = int(str(argument(node, groups_at, "groups", 1)))
    stride = integers(argument(node, 3, "stride", 1), rank, 1)
    dilation_at = 7 if transposed and groups_at == 6 else 5
    dilation = integers(argument(node, dilation_at, "dilation", 1), rank, 1)
    spatial, taps = _SPATIAL[rank], _KERNEL[rank]
    outer: Names = ("b",) if len(out) == rank + 2 else ()
    across_in, across_out = ("c", "n") if groups == 1 else ("g", "g")
    weights: Names = (across_out, "c") if groups == 1 else ("g", None)
    if transposed:
        weights = ("c", "n") if groups == 1 else ("g", None)
    around = tuple(max(0, d * (k - 1) + 1 - s) for k, s, d in zip(kernel[2:], stride, dilation, strict=True))
    draft = Draft(
        "convolution",
        [
            Use(x, (*outer, across_in, *spatial), (0,) * (len(outer) + 1) + around),
            Use(weight, (*weights, *taps)),
            *(Use(b, (across_out,)) for b in bias),
        ],
        [(*outer, across_out, *spatial)],
        {},
        whole={*taps, *(spatial if transposed else ())},
        product=True,
    )
    if groups > 1:
        draft.extents["g"] = groups
    draft.run_along(out, draft.outputs[0])
    draft.run_along(given, draft.uses[0].dims)
    draft.run_along(kernel, draft.uses[1].dims)
    channels = given[len(outer)] if transposed else kernel[1]
    made = math.prod(given) // channels if transposed else math.prod(out)
    draft.flops = 2.0 * made * (math.prod(kernel) if transposed else channels * math.prod(kernel[2:]))
    return draft


def attention(node: Node) -> Draft:
    """Softmax of ``q[b, h, s, d] k[b, h, t, d]`` over t, times ``v[b, h, t, e]``.

    Queries are not shared out where each sees the keys before it only. Heads that share keys stay together.
    """
    query, key, value, *mask = tensors(node)
    q, k, v = shape_of(query), shape_of(key), shape_of(value)
    outer = leading_names(1) if len(q) > 3 else ()
    heads: Names = (*outer, *("h" if i == len(q) - 3 else None for i in range(len(outer), len(q) - 2)))
    out: Names = (*heads, "s", "e")
    causal = bool(argument(node, 5, "is_causal", False))
    draft = Draft(
        "attention",
        [
            Use(query, (*heads, "s", "d")),
            Use(key, (*heads, "t", "d")),
            Use(value, (*heads, "t", "e")),
            *(Use(m, aligned(shape_of(m), (*heads, "s", "t"), (*q[:-1], k[-2]))) for m in mask),
        ],
        [out],
        {},
        whole={"t", "d", "e", *(("s",) if causal else ())},
        product=True,
        saved=math.prod(q[:-1]),  # the logarithm of each sum
    )
    for shape, use in ((k, draft.uses[1]), (q, draft.uses[0]), (v, draft.uses[2])):
        draft.run_along(shape, use.dims)
    draft.flops = 2.0 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])
    return draft


def embedding(node: Node) -> Draft:
    """``y[..., d] = weight[v, d]`` for the index v: a split vocabulary leaves sums.

    Where gradients are divided by how often an index is there, indices and vocabulary stay whole.
    """
    weight, indices = tensors(node)
    leading = leading_names(len(shape_of(indices)))
    names = tuple("i" if name == "v" else name for name in leading)
    draft = Draft(
        "embedding", [Use(weight, ("v", "d")), Use(indices, names, kept=False)], [(*names, "d")], {}
    )
    if argument(node, 3, "scale_grad_by_freq"):
        draft.whole = {*names, "v"}
    draft.run_along(extents(node)[0], draft.outputs[0])
    draft.run_along(shape_of(weight), ("v", "d"))
    return draft


PRODUCTS: dict[str, Callable[[Node], Draft | None]] = {
    "linear": linear,
    "addmm": addmm,
    "mm": matmul,
    "bmm": matmul,
    "mv": matmul,
    "dot": matmul,
    "matmul": matmul,
    "einsum": einsum,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), convolution),
    "scaled_dot_product_attention": attention,
    "embedding": embedding,
}
