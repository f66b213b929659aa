"""Layers without products: normalizations, softmax, losses, pooling, sums, recurrences, values one by one."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch.fx import Node

from fewbits.planner.capture.arguments import argument, extents, integers, operation, tensors
from fewbits.planner.capture.draft import Draft, Names, Use, axis_names, leading_names
from fewbits.planner.capture.kept import Kept
from fewbits.planner.capture.products import aligned, shape_of


def _drafted(
    kind: str, uses: list[Use], output: Names, shape: tuple[int, ...], whole: set[str] | None = None
) -> Draft:
    draft = Draft(kind, uses, [output], {}, whole=whole or set(), flops=float(math.prod(shape)))
    draft.run_along(shape, output)
    for use in uses:
        draft.run_along(shape_of(use.node), use.dims)
    return draft


def layer_norm(node: Node) -> Draft:
    """Over the last axes, which stay whole; the leading ones are free."""
    x, *affine = tensors(node)
    shape = shape_of(x)
    normalized = argument(node, 1, "normalized_shape")
    inner = len(normalized) if isinstance(normalized, (list, tuple)) else 1
    rank = len(shape)
    last = tuple("d" if i == rank - 1 else f"d{i}" for i in range(rank - inner, rank))
    names = (*leading_names(rank - inner), *last)
    draft = _drafted(
        "normalization", [Use(x, names), *(Use(w, last) for w in affine)], names, shape, whole=set(last)
    )
    draft.flops *= 5
    moments = 1 if operation(node) == "rms_norm" else 2
    draft.saved = moments * math.prod(shape[: rank - inner])
    return draft


def group_norm(node: Node) -> Draft:
    """Over groups of channels of one sample, which stay whole."""
    x, *affine = tensors(node)
    names, is_instance = axis_names(len(shape_of(x))), operation(node) == "instance_norm"
    # Running moments are means over all samples.
    running = argument(node, 3, "running_mean") if is_instance else None
    is_updated = running is not None and bool(argument(node, 5, "use_input_stats"))
    draft = _drafted(
        "normalization",
        [Use(x, names), *(Use(w, (names[1],)) for w in affine)],
        names,
        shape_of(x),
        whole=set(names if is_updated else names[1:]),
    )
    draft.flops *= 5
    channels = shape_of(x)[1]
    groups = channels if is_instance else argument(node, 1, "num_groups")
    draft.saved = 2 * shape_of(x)[0] * int(str(groups))
    return draft


def batch_norm(node: Node) -> Draft:
    """Over the batch and the places, for each channel: pieces of a batch in training sum their moments."""
    x, *others = tensors(node)
    names: Names = ("b", "c", *axis_names(len(shape_of(x)))[2:]) if len(shape_of(x)) > 1 else ("c",)
    uses = [Use(x, names), *(Use(w, ("c",), kept=False) for w in others)]  # moments so far are the model's
    draft = _drafted("normalization", uses, names, shape_of(x))
    draft.whole = {name for name in draft.extents if name not in {"b", "c"}}
    draft.flops *= 5
    draft.saved = 2 * draft.extents.get("c", 1)
    if argument(node, 5, "training", False):
        draft.statistics = (((2, draft.extents["c"]), (None, "c")),)
    return draft


def softmax(node: Node) -> Draft:
    """Along one axis, which stays whole."""
    (x, *_) = tensors(node)
    shape, names = shape_of(x), axis_names(len(shape_of(x)))
    whole = {names[int(str(argument(node, 1, "dim"))) % len(shape)]} if shape else set[str]()
    draft = _drafted("softmax", [Use(x, names, kept=False)], names, shape, whole=whole)
    draft.flops *= 5
    draft.keeps_output = True
    return draft


def cross_entropy(node: Node) -> Draft:
    """Classes stay whole; samples are free, and their losses are summed where they are reduced."""
    x, target, *weight = tensors(node)
    shape, rank = shape_of(x), len(shape_of(x))
    at = 1 if rank > 1 else 0
    names = tuple("v" if i == at else name for i, name in enumerate(axis_names(rank)))
    samples = tuple(name for name in names if name != "v")
    out = extents(node)[0]
    draft = _drafted(
        "softmax",
        [
            Use(x, names, kept=False),
            Use(target, names if shape_of(target) == shape else samples),
            *(Use(w, ("v",)) for w in weight),
        ],
        samples if out else (),
        out,
        whole={"v"},
    )
    draft.flops = 5.0 * math.prod(shape)
    if operation(node) == "cross_entropy_loss":
        draft.saved = math.prod(shape)  # logarithms of probabilities, which the others are given
    return draft


# Losses value by value, and where their reduction stands among the arguments.
LOSSES = {
    **dict.fromkeys(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"), 2),
    "binary_cross_entropy": 3,
    "binary_cross_entropy_with_logits": 4,
}


def loss(node: Node) -> Draft:
    """A loss of each value, then their mean, their sum or neither."""
    given = tensors(node)
    shape, out = shape_of(given[0]), extents(node)[0]
    names = axis_names(len(shape))
    uses = [Use(x, aligned(shape_of(x), names, shape), kept=False) for x in given]
    draft = _drafted("elementwise", uses, names if out == shape else (), out)
    draft.flops, draft.saved = 2.0 * math.prod(shape), 2 * math.prod(shape)
    return draft


def pooling(node: Node) -> Draft:
    """A window slides over the places; adaptive windows differ, so that their places stay whole."""
    (x,) = tensors(node)
    given, out = shape_of(x), extents(node)[0]
    adaptive = "adaptive" in str(node.target)
    rank = next(n for n in (1, 2, 3) if f"pool{n}d" in str(node.target))
    places = {1: ("w",), 2: ("h", "w"), 3: ("t", "h", "w")}[rank]
    names: Names = (*("b", "c")[rank + 2 - len(given) :], *places)  # a sample alone has no b
    halos: tuple[int, ...] = ()
    if not adaptive:
        kernel = integers(argument(node, 1, "kernel_size"), rank, 1)
        stride = integers(argument(node, 2, "stride", None) or kernel, rank, 1)
        halos = (0,) * (len(given) - rank) + tuple(max(0, k - s) for k, s in zip(kernel, stride, strict=True))
    draft = Draft("elementwise", [Use(x, names, halos)], [names for _ in extents(node)], {})
    draft.whole = set(places) if adaptive else set()
    draft.run_along(out, names)
    draft.flops = float(math.prod(given))
    if "max_pool" in str(node.target):
        draft.saved = 2 * math.prod(out)  # places, of 64 bits
    return draft


def elementwise(node: Node, kept: Kept) -> Draft:
    """Each value from the values at its place."""
    out = extents(node)[0]
    names = axis_names(len(out))
    dims: Names = tuple(name if n > 1 else None for name, n in zip(names, out, strict=True))
    uses = [Use(x, aligned(shape_of(x), dims, out), kept=x in kept.read) for x in tensors(node)]
    draft = _drafted("elementwise", uses, dims, out)
    draft.saved, draft.keeps_output = kept.own, kept.made
    return draft


def reduction(node: Node) -> Draft:
    """Sums leave sums; any other reduction keeps its axes whole."""
    x, *others = tensors(node)
    if others:
        return elementwise(node, Kept((x, *others)))  # the larger of two tensors
    shape, rank = shape_of(x), len(shape_of(x))
    name = operation(node)
    given = argument(node, 2 if name in {"norm", "linalg_vector_norm"} else 1, "dim")
    dims = given if isinstance(given, (list, tuple)) else [given]
    # var(True) and std(True) have a bool there: whether they are unbiased.
    gone = {d % rank for d in dims if isinstance(d, int) and not isinstance(d, bool)} if rank else set()
    gone = gone or set(range(rank))
    names = axis_names(rank)
    keep = any(len(out) == rank for out in extents(node)) and rank > 0
    output = tuple(None if i in gone else name for i, name in enumerate(names) if keep or i not in gone)
    additive = name in {"sum", "mean"}
    draft = _drafted(
        "elementwise",
        [Use(x, names, kept=name in _FROM_VALUES and len(extents(node)) == 1)],
        output,
        extents(node)[0],
        set() if additive else {names[i] for i in gone},
    )
    draft.outputs = [output for _ in extents(node)]
    draft.flops = float(math.prod(shape))
    draft.keeps_output = draft.uses[0].kept and name != "var"
    draft.saved = 2 * math.prod(extents(node)[0]) * (len(extents(node)) - 1)  # places, of 64 bits
    return draft


# Reductions whose derivative takes the values that were reduced.
_FROM_VALUES = frozenset(
    ("amax", "amin", "linalg_vector_norm", "logsumexp", "max", "min", "norm", "prod", "std", "var")
)


def lstm(node: Node) -> Draft | None:
    """A recurrence: steps, gates and layers stay whole, samples are free."""
    nodes = tensors(node)
    x, state = nodes[0], argument(node, 1, "hx")
    if len(shape_of(x)) != 3:
        return None  # a packed sequence
    states = len(list(state)) if isinstance(state, (list, tuple)) else 1
    first = bool(argument(node, 8, "batch_first"))
    names: Names = ("b", "s", "d") if first else ("s", "b", "d")
    out, *final = extents(node)
    weights = nodes[1 + states :]
    uses = [
        Use(x, names),
        *(Use(h, (None, "b", None)) for h in nodes[1 : 1 + states]),
        *(Use(w, (None,) * len(shape_of(w))) for w in weights),
    ]
    outputs: list[Names] = [(*names[:2], "e"), *((None, "b", None) for _ in final)]
    draft = Draft("lstm", uses, outputs, {}, whole={"s", "d", "e"}, product=True)
    draft.run_along(out, outputs[0])
    draft.run_along(shape_of(x), names)
    tokens = math.prod(shape_of(x)[:2])
    draft.flops = 2.0 * tokens * sum(math.prod(shape_of(w)) for w in weights if len(shape_of(w)) > 1)
    directions = 2 if argument(node, 7, "bidirectional") else 1
    cells = int(str(argument(node, 4, "num_layers"))) * directions
    gates, kept = _RECURRENT[operation(node)]
    draft.saved = kept * tokens * (shape_of(weights[0])[0] // gates) * cells
    return draft


# Gates of a cell, and what a fused one keeps of each step: its gates and its states before and after.
_RECURRENT = {"lstm": (4, 6), "gru": (3, 6), "rnn_tanh": (1, 1), "rnn_relu": (1, 1)}


OTHERS: dict[str, Callable[[Node], Draft | None]] = {
    **dict.fromkeys(("layer_norm", "rms_norm"), layer_norm),
    **dict.fromkeys(("group_norm", "instance_norm"), group_norm),
    "batch_norm": batch_norm,
    **dict.fromkeys(("softmax", "log_softmax", "_softmax", "_log_softmax"), softmax),
    **dict.fromkeys(("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d"), cross_entropy),
    **dict.fromkeys(
        tuple(f"{a}{b}_pool{n}d" for a in ("", "adaptive_") for b in ("max", "avg") for n in (1, 2, 3)),
        pooling,
    ),
    **dict.fromkeys(LOSSES, loss),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "norm"), reduction),
    **dict.fromkeys(("linalg_vector_norm", "var", "std", "logsumexp", "prod", "any", "all"), reduction),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), lstm),
}

# Each value from the values at its place; the overloads with one tensor and those with several.
POINTWISE = frozenset(
    (
        *("abs", "acos", "add", "addcdiv", "addcmul", "asin", "atan", "atan2", "bernoulli"),
        *("bitwise_and", "bitwise_not", "bitwise_or", "ceil", "celu", "clamp", "clamp_max", "clamp_min"),
        *("copysign", "cos", "cosh", "div", "dropout", "elu", "eq", "erf", "erfc", "exp", "exp2"),
        *("expm1", "feature_dropout", "floor", "floor_divide", "fmod", "full_like", "ge", "gelu", "gt"),
        *("hardsigmoid", "hardswish", "hardtanh", "isfinite", "isinf", "isnan", "le", "leaky_relu"),
        *("lerp", "log", "log10", "log1p", "log2", "log_sigmoid", "logaddexp", "logical_and"),
        *("logical_not", "logical_or", "logical_xor", "lt", "masked_fill", "maximum", "minimum", "mish"),
        *("mul", "nan_to_num", "ne", "neg", "ones_like", "pow", "reciprocal", "relu", "relu6"),
        *("remainder", "round", "rrelu", "rsqrt", "rsub", "selu", "sigmoid", "sign", "silu", "sin"),
        *("sinh", "softplus", "softshrink", "sqrt", "square", "sub", "tan", "tanh", "tanhshrink"),
        *("threshold", "trunc", "where", "xlogy", "zeros_like", "__and__", "__or__", "__xor__"),
    )
)
