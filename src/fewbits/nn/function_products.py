"""Products that are written as functions, with narrow operands: ``@``, bmm, einsum, attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fewbits.errors import ArgumentError
from fewbits.nn.layer_precision import LayerPrecision
from fewbits.nn.layers.dot_product import probabilities
from fewbits.nn.products import attention_product, converted, linear, viewed

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)

Product = Callable[..., torch.Tensor | None]
"""``product(precision, *arguments)``: the function with narrow operands; None: there is nothing to do."""


def matmul(precision: LayerPrecision, a: object, b: object) -> torch.Tensor | None:
    """Return ``a @ b`` as :func:`torch.matmul` defines it, in the dtype that it has there.

    A product with a parameter of the model takes it as a layer's weight. What sums over one value only is no
    sum: it stays as it is, as the angles of rotary embeddings do.
    """
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or not _floats(a, b):
        return None
    if a.ndim == 0 or b.ndim == 0 or a.shape[-1] == 1:
        return None
    left, right = a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b
    if left.shape[-1] != right.shape[-2]:
        return None  # torch says what does not fit
    if right.ndim == 2 and (_is_parameter(b) or left.ndim > 2):
        y = _rows(left, right, _is_parameter(b), precision)
    elif left.ndim == 2 and _is_parameter(a):
        y = _rows(right.mT, left.mT, True, precision).mT
    else:
        batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        y = attention_product(
            left.expand(*batch, *left.shape[-2:]), right.expand(*batch, *right.shape[-2:]), precision
        )
    y = y.squeeze(-1) if b.ndim == 1 else y
    y = y.squeeze(-1 if b.ndim == 1 else -2) if a.ndim == 1 else y
    return y.to(torch.result_type(a, b))


def _only(of_a: int, of_b: int) -> Product:
    """Return matmul for operands of so many dimensions, in one batch: all that mm, bmm, mv and dot take."""

    def product(precision: LayerPrecision, a: object, b: object) -> torch.Tensor | None:
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            return None
        if (a.ndim, b.ndim) != (of_a, of_b) or a.shape[:-2] != b.shape[:-2]:
            return None  # torch says what does not fit
        return matmul(precision, a, b)

    return product


_mm, _bmm, _mv, _dot = _only(2, 2), _only(3, 3), _only(2, 1), _only(1, 1)


def _adding(product: Product) -> Product:
    """Return ``beta * input + alpha * (a @ b)`` for one kind of product: addmm, baddbmm or addmv."""

    def added(
        precision: LayerPrecision,
        input: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        *,
        beta: float = 1,
        alpha: float = 1,
    ) -> torch.Tensor | None:
        y = product(precision, a, b)
        if y is None:
            return None
        input = input.expand(y.shape)  # or torch says that it does not fit
        y = y if alpha == 1 else alpha * y
        return y if beta == 0 else y + (input if beta == 1 else beta * input)

    return added


def weighted(
    precision: LayerPrecision, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor | None:
    """Return ``input @ weight.T + bias``, as :func:`torch.nn.functional.linear` does."""
    if not _floats(input, weight) or not input.ndim or not weight.ndim or weight.shape[-1] == 1:
        return None
    if weight.ndim > 2 or input.shape[-1] != weight.shape[-1] or (weight.ndim == 1 and bias is not None):
        return None  # torch says what does not fit
    matrix = viewed(weight, precision)[None] if weight.ndim == 1 else weight
    y = linear(input[None] if input.ndim == 1 else input, matrix, None, precision)
    y = y.squeeze(-1) if weight.ndim == 1 else y
    y = y.squeeze(0) if input.ndim == 1 else y
    return (y if bias is None else y + converted(bias, y.dtype)).to(input.dtype)


def inner(precision: LayerPrecision, a: object, b: object) -> torch.Tensor | None:
    """Return the sums of products along the last dimensions, as :func:`torch.inner` does."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or not a.ndim or not b.ndim:
        return None
    if a.shape[-1] != b.shape[-1]:
        return None  # torch says what does not fit: unlike tensordot, it broadcasts nothing
    return contracted(precision, a, b, ([-1], [-1]))


def contracted(precision: LayerPrecision, a: object, b: object, dims: Any = 2) -> torch.Tensor | None:
    """Return the sums of products over some dimensions, as :func:`torch.tensordot` does."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or not _floats(a, b):
        return None
    dims = dims.tolist() if isinstance(dims, torch.Tensor) else dims
    of_a, of_b = (range(a.ndim - dims, a.ndim), range(dims)) if isinstance(dims, int) else dims
    letters = [chr(0x3B1 + i) for i in range(a.ndim + b.ndim)]
    left, right = letters[: a.ndim], letters[a.ndim :]
    if len(of_a) != len(of_b) or any(
        not -x.ndim <= i < x.ndim for x, of in ((a, of_a), (b, of_b)) for i in of
    ):
        return None  # torch says what does not fit
    for i, j in zip(of_a, of_b, strict=True):
        right[j] = left[i]
    summed = [left[i] for i in of_a]
    out = [i for i in (*left, *right) if i not in summed]
    plan = _Equation("".join(left), "".join(right), "".join(out), summed)
    return plan.product(a, b, precision) if summed else None


def attention(
    precision: LayerPrecision,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor | None:
    """Return scaled dot-product attention with narrow operands in q k^T and in p v, and a float32 softmax.

    Without mask, scale and dropout these are the operations of :class:`fewbits.nn.DotProductAttention`. A
    query that may attend to nothing gets 0.
    """
    if not _floats(query, key, value):
        return None
    if attn_mask is not None and attn_mask.dtype not in (torch.bool, *_FLOATS):
        return None  # torch refuses it: of integers nobody knows whether they are added
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    q, k, v = (x.expand(*batch, *x.shape[-2:]) for x in (query, key, value))
    scores = attention_product(q, k.mT, precision)
    mask = _mask(scores, attn_mask, is_causal)
    if scale is None:
        p = probabilities(scores, mask, query.shape[-1])
    else:
        p = probabilities(scores.float() * scale, mask, 1).to(scores.dtype)
    p = functional.dropout(p, dropout_p) if dropout_p else p
    return attention_product(p, v, precision).to(query.dtype)


def einsum(precision: LayerPrecision, equation: str, *operands: object) -> torch.Tensor | None:
    """Return what :func:`torch.einsum` does for two operands that are summed over together.

    Raises:
        ArgumentError: more than two operands, which may be multiplied in any order.
    """
    given = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    tensors = [x for x in given if isinstance(x, torch.Tensor)]
    if len(tensors) == 1 or not _floats(*tensors):
        return None
    if len(tensors) > 2:
        raise ArgumentError(
            f"einsum {equation!r} multiplies {len(tensors)} tensors, and their order is open; write products"
            " of two, or exclude the module"
        )
    a, b = tensors
    plan = _Equation.read(equation, a.ndim, b.ndim)
    return None if plan is None else plan.product(a, b, precision)


class _Equation:
    """An einsum of two operands as one batched matrix product."""

    def __init__(self, left: str, right: str, out: str, summed: list[str] | None = None) -> None:
        self.left, self.right, self.out = left, right, out
        self.batch = [i for i in out if i in left and i in right]
        self.summed = list(dict.fromkeys(i for i in left if i in right and i not in out))
        self.summed = summed or self.summed  # in the order in which they lie along the blocks
        self.rows = [i for i in out if i in left and i not in right]
        self.columns = [i for i in out if i in right and i not in left]

    @classmethod
    def read(cls, equation: str, left: int, right: int) -> _Equation | None:
        """Return an equation; None where it is no product over shared indices."""
        given, arrow, out = equation.replace(" ", "").partition("->")
        spare = [c for c in map(chr, range(0x3B1, 0x3FF)) if c not in equation]
        terms = []
        most = 0
        for term, ndim in zip(given.split(","), (left, right), strict=True):
            hidden = ndim - len(term.replace("...", ""))
            most = max(most, hidden)
            terms.append(term.replace("...", "".join(spare[:hidden][::-1])))
        if not arrow:
            letters = sorted("".join(given.replace("...", "").replace(",", "")))
            out = "..." + "".join(c for c in letters if letters.count(c) == 1)
        made = cls(terms[0], terms[1], out.replace("...", "".join(spare[:most][::-1])))
        return made if made.summed else None

    def product(self, a: torch.Tensor, b: torch.Tensor, precision: LayerPrecision) -> torch.Tensor | None:
        kept = {*self.out, *self.summed}
        a, of_a = _distinct(a, self.left, kept)
        b, of_b = _distinct(b, self.right, kept)
        sizes = dict(zip(of_b, b.shape, strict=True))
        for i, n in zip(of_a, a.shape, strict=True):
            if sizes.setdefault(i, n) != n and 1 not in (n, sizes[i]):
                return None  # torch says what does not fit
            sizes[i] = n if sizes[i] == 1 else sizes[i]
        a, b = a.expand([sizes[i] for i in of_a]), b.expand([sizes[i] for i in of_b])

        def arranged(x: torch.Tensor, indices: str, groups: list[list[str]]) -> torch.Tensor:
            flat = x.permute([indices.index(i) for group in groups for i in group])
            return flat.reshape([*map(sizes.__getitem__, self.batch), *(_size(g, sizes) for g in groups[1:])])

        left = arranged(a, of_a, [self.batch, self.rows, self.summed])
        right = arranged(b, of_b, [self.batch, self.summed, self.columns])
        y = matmul(precision, left, right)
        if y is None:
            return None
        order = [*self.batch, *self.rows, *self.columns]
        return y.reshape([sizes[i] for i in order]).permute([order.index(i) for i in self.out])


def _distinct(x: torch.Tensor, indices: str, kept: set[str]) -> tuple[torch.Tensor, str]:
    """Return the diagonal along an index that is there twice, summed over what only this operand has."""
    while (twice := next((i for i in indices if indices.count(i) > 1), None)) is not None:
        first = indices.index(twice)
        second = indices.index(twice, first + 1)
        x = x.diagonal(dim1=first, dim2=second)
        indices = "".join(i for place, i in enumerate(indices) if place not in (first, second)) + twice
    alone = [place for place, i in enumerate(indices) if i not in kept]
    return (x.sum(alone) if alone else x), "".join(i for i in indices if i in kept)


def _size(indices: list[str], sizes: dict[str, int]) -> int:
    return math.prod(sizes[i] for i in indices)


def _rows(left: torch.Tensor, right: torch.Tensor, weighs: bool, precision: LayerPrecision) -> torch.Tensor:
    """Return ``left @ right`` with a matrix at the right, whose gradient sums over all rows of the left."""
    if weighs:
        return linear(left, right.mT, None, precision)
    y = attention_product(left.flatten(0, -2), right, precision)
    return y.reshape(*left.shape[:-1], right.shape[-1])


def _mask(scores: torch.Tensor, given: torch.Tensor | None, is_causal: bool) -> torch.Tensor | None:
    """Return what is added to the scores; of booleans, True takes part."""
    if is_causal:
        if given is not None:
            raise ArgumentError(
                "attn_mask and is_causal=True of scaled_dot_product_attention; give one of them"
            )
        return torch.full(scores.shape[-2:], -math.inf, dtype=torch.float32, device=scores.device).triu(1)
    if given is None or given.dtype != torch.bool:
        return None if given is None else given.float()
    return torch.zeros_like(given, dtype=torch.float32).masked_fill(given.logical_not(), -math.inf)


def _floats(*tensors: object) -> bool:
    return all(isinstance(x, torch.Tensor) and x.dtype in _FLOATS for x in tensors)


def _is_parameter(x: torch.Tensor) -> bool:
    return isinstance(x, nn.Parameter) or isinstance(x._base, nn.Parameter)


PRODUCTS: dict[object, Product] = {
    **dict.fromkeys(
        (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.linalg.matmul), matmul
    ),
    **dict.fromkeys((torch.mm, torch.Tensor.mm), _mm),
    **dict.fromkeys((torch.bmm, torch.Tensor.bmm), _bmm),
    **dict.fromkeys((torch.mv, torch.Tensor.mv), _mv),
    **dict.fromkeys((torch.dot, torch.vdot, torch.Tensor.dot, torch.Tensor.vdot), _dot),
    **dict.fromkeys((torch.addmm, torch.Tensor.addmm), _adding(_mm)),
    **dict.fromkeys((torch.baddbmm, torch.Tensor.baddbmm), _adding(_bmm)),
    **dict.fromkeys((torch.addmv, torch.Tensor.addmv), _adding(_mv)),
    **dict.fromkeys((torch.inner, torch.Tensor.inner), inner),
    torch.tensordot: contracted,
    torch.Tensor.__rmatmul__: lambda precision, b, a: matmul(precision, a, b),
    torch.einsum: einsum,
    functional.linear: weighted,
    functional.scaled_dot_product_attention: attention,
}

# Functions with products that stay wide: who calls them is warned.
WIDE: frozenset[object] = frozenset(
    (
        *(torch.addbmm, torch.chain_matmul, torch.linalg.multi_dot, torch.linalg.vecdot, torch.cdist),
        *(torch.Tensor.addmm_, torch.Tensor.baddbmm_, torch.Tensor.addmv_, torch.Tensor.addbmm),
        *(torch.Tensor.addbmm_, functional.bilinear, functional.multi_head_attention_forward),
        *(torch.matrix_power, torch.linalg.matrix_power, torch.Tensor.matrix_power),
        *(torch.cov, torch.Tensor.cov, torch.corrcoef, torch.Tensor.corrcoef),
        *(torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell, torch.convolution),
        *(torch.sparse.mm, torch.sparse.addmm, torch.sparse.sampled_addmm),
        *(functional.conv1d, functional.conv2d, functional.conv3d),
        *(functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d),
    )
)
