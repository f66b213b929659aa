"""The implementation of each torch operation for NarrowTensors: two tables for the registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fewbits.errors import ArgumentError
from fewbits.kernels import ops
from fewbits.kernels.bits.options import Choices
from fewbits.tensor.narrow import products, registry, slicing, views
from fewbits.tensor.narrow.operands import check_ranks, check_summand
from fewbits.tensor.narrow.tensor import DTYPES, NarrowTensor

aten = torch.ops.aten


def _copied(
    q: NarrowTensor,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    non_blocking: bool = False,
    **_: Any,  # layout, pin_memory and memory_format have no effect
) -> NarrowTensor:
    """Return a copy; ``dtype`` is that of its dequantized values.

    They are an array if those of ``q`` are, unless a dtype or device of torch's takes the place of NumPy's.
    """
    if dtype not in (None, *DTYPES):
        raise ArgumentError(
            f"{q} to {dtype}; its values are float32, bfloat16, float16 or float64: choose one"
        )
    parts = tuple(
        part if part is None else part.to(device, non_blocking=non_blocking, copy=True) for part in q.pieces
    )
    codes, own = parts[0], dtype or q.dtype
    family = q._family if codes is not None and codes.is_cpu and own == q.dtype else None
    return NarrowTensor(parts, q.format, q.shape, q.axis, own, family, q.sparsity)


def _clone(q: NarrowTensor, *, memory_format: torch.memory_format = torch.preserve_format) -> NarrowTensor:
    return q.each(lambda part: part.clone(memory_format=memory_format))


def _copy_into(q: Any, source: torch.Tensor, non_blocking: bool = False) -> Any:
    """Overwrite ``q`` with a tensor of the same format, or with an ordinary one after quantizing it."""
    if not isinstance(q, NarrowTensor):
        raise ArgumentError(f"copy_ of {source} into an ordinary tensor: call .dequantize() on it first")
    if q.shape != source.shape:
        raise ArgumentError(f"copy_ of shape {tuple(source.shape)} into {q}; expected {tuple(q.shape)}")
    fmt = q.format
    if q._shares_its_scale:
        raise ArgumentError(
            f"copy_ into a piece of {fmt} would change a scale that other values share: copy into all of it"
        )
    if isinstance(source, NarrowTensor):
        if (source.format, source.axis, source.sparsity) != (fmt, q.axis, q.sparsity):
            raise ArgumentError(
                f"copy_ of {source} into {q}; expected one format, axis and sparsity: dequantize it first"
            )
        new = [part for part in source.pieces if part is not None]
    else:
        new = ops.quantize(source.detach(), fmt, q.axis, Choices(), 0, None)
        if q.sparsity is not None:
            n = q.shape[q.axis] if q.ndim else 1
            new[0] = ops.compress(new[0], fmt, n, q.sparsity)
    old = [part for part in q.pieces if part is not None]
    for mine, theirs in zip(old, new, strict=True):
        mine.copy_(theirs, non_blocking)
    return q


def _equal(a: Any, b: Any) -> bool:
    """Return whether two packed tensors have the same format, axis, shape and bytes."""
    if not (isinstance(a, NarrowTensor) and isinstance(b, NarrowTensor)):
        raise ArgumentError("torch.equal of a NarrowTensor and an ordinary tensor: call .dequantize() first")
    if (a.format, a.axis, a.shape, a.sparsity) != (b.format, b.axis, b.shape, b.sparsity):
        return False
    pairs = [(x, y) for x, y in zip(a.pieces, b.pieces, strict=True) if x is not None and y is not None]
    return all(torch.equal(_bits(x), _bits(y)) for x, y in pairs)


def _bits(part: torch.Tensor) -> torch.Tensor:
    return part.view(torch.int32) if part.dtype == torch.float32 else part  # NaN equals itself


def _addmm(bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> torch.Tensor:
    """Return ``beta bias + alpha a @ b``; torch calls this for a linear layer, with the weight transposed."""
    if isinstance(bias, NarrowTensor):
        raise ArgumentError(f"{bias} as the summand of addmm: call .dequantize() on it first")
    products.check_matrix(b)
    check_ranks(a, b, "addmm", (2, 2))
    if beta == alpha == 1 and bias.ndim == 1:
        return products.linear(a, b.t(), bias)
    y = products.product(a, b)
    check_summand(bias, y.dtype, y.shape)
    summand = beta * bias if beta else torch.zeros_like(bias)  # as in torch, where NaN is not passed on then
    return torch.add(summand, y, alpha=alpha)


def _embedding(weight: NarrowTensor, indices: torch.Tensor, *_: Any) -> torch.Tensor:
    """Return the rows of ``weight`` at ``indices``; only those are dequantized."""
    return slicing.rows(weight, indices).dense()


def _attention(attend: Callable[..., Any]) -> Callable[..., Any]:
    """Return attention of tensors of which some are packed, as held keys and values are: of their values."""

    def attended(*tensors: Any, **options: Any) -> Any:
        # A mask comes by its name.
        named = {name: _values(x) for name, x in options.items()}
        return attend(*map(_values, tensors), **named)

    return attended


def _values(x: Any) -> Any:
    return x.dense() if isinstance(x, NarrowTensor) else x


def _sum(q: NarrowTensor, **options: Any) -> torch.Tensor:
    """Return the sum of no values, for which attention to an empty cache asks; other sums need the values."""
    if q.numel():
        raise registry.refusal(aten.sum.default)
    return q.dense().sum(**options)


def _same(q: NarrowTensor, *_: Any) -> NarrowTensor:
    return q.each(lambda part: part)


VIEWS: registry.Table = {
    aten._unsafe_view.default: views.reshape,
    aten.alias.default: _same,
    aten.detach.default: _same,
    aten.expand.default: lambda q, size, implicit=False: views.expand(q, size),
    aten.permute.default: views.permute,
    aten.select.int: slicing.select,
    aten.slice.Tensor: slicing.cut,
    aten.split.Tensor: slicing.split,
    aten.split_with_sizes.default: slicing.split,
    aten.squeeze.default: views.squeeze,
    aten.squeeze.dim: views.squeeze,
    aten.squeeze.dims: views.squeeze,
    aten.t.default: views.t,
    aten.transpose.int: views.transpose,
    aten.unbind.int: slicing.unbind,
    aten.unsqueeze.default: views.unsqueeze,
    aten.view.default: views.reshape,
}
COMPUTED: registry.Table = {
    aten._to_copy.default: _copied,
    aten.addmm.default: _addmm,
    aten.bmm.default: products.bmm,
    aten.clone.default: _clone,
    aten.copy_.default: _copy_into,
    aten.dequantize.self: NarrowTensor.dense,
    aten.embedding.default: _embedding,
    aten.equal.default: _equal,
    aten.index.Tensor: slicing.index,
    aten.index_select.default: slicing.index_select,
    aten.linear.default: products.linear,
    aten.matmul.default: products.product,
    aten.mm.default: products.mm,
    aten.mv.default: products.mv,
    aten.sum.default: _sum,
}
registry.VIEWS.update(VIEWS)
registry.COMPUTED.update(COMPUTED)
registry.COMPUTED.update(
    (attend, _attention(attend))
    for attend in (
        aten._scaled_dot_product_attention_math.default,
        aten._scaled_dot_product_cudnn_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    )
)
