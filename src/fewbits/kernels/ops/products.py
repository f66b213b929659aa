"""The operators that multiply: a packed matrix with vectors, bfloat16 values, and without multiplications."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fewbits.formats import Format
from fewbits.formats.pattern import Pattern, pattern
from fewbits.kernels.arrays import products
from fewbits.kernels.bits.options import read_format
from fewbits.kernels.ops.derivatives import derive
from fewbits.kernels.ops.library import LIBRARY, define
from fewbits.kernels.ops.tensors import array, packed


@torch.library.custom_op("fewbits::gemv", mutates_args=())
def _gemv(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor | None,
    shifts: torch.Tensor | None,
    outer: torch.Tensor | None,
    format: str,
    sparsity: str | None,
    lines: int,
) -> torch.Tensor:
    weight, of_x = packed((codes, scales, shifts, outer)), x.cpu()
    kept = None if sparsity is None else pattern(sparsity)
    bfloat16, y = x.dtype == torch.bfloat16, torch.empty(len(x), lines)
    rows = array(of_x.float())
    products.gemv(rows, weight, read_format(format), lines, kept, bfloat16=bfloat16, out=array(y))
    return y.to(x.device, x.dtype)


@_gemv.register_fake
def _(
    x: torch.Tensor,
    codes: Any,
    scales: Any,
    shifts: Any,
    outer: Any,
    format: str,
    sparsity: str | None,
    lines: int,
) -> torch.Tensor:
    return x.new_empty((x.shape[0], lines))


def gemv(
    x: torch.Tensor,
    parts: tuple[torch.Tensor | None, ...],
    format: Format,
    lines: int,
    sparsity: Pattern | None = None,
) -> torch.Tensor:
    """Return ``x @ W.T`` in x's dtype, W packed with its blocks along the last axis, summed in float32."""
    kept = None if sparsity is None else str(sparsity)
    y: torch.Tensor = _gemv(x, *parts, format.grammar, kept, lines)
    return y


def _bfloat16_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = torch.empty(len(a), b.shape[1])
    products.bfloat16_product(array(a), array(b), out=array(y))
    return y


def _empty_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.new_empty((a.shape[0], b.shape[1]))


define(_bfloat16_product, _empty_product)


def _product_gradients(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = ctx.saved_tensors
    return gradient @ b.t(), a.t() @ gradient


def _product_tangent(ctx: Any, of_a: torch.Tensor | None, of_b: torch.Tensor | None) -> torch.Tensor | None:
    a, b = ctx.saved_tensors
    left: torch.Tensor | None = None if of_a is None else of_a @ b
    right: torch.Tensor | None = None if of_b is None else a @ of_b
    if left is None or right is None:
        return right if left is None else left
    return left + right


derive(LIBRARY, "bfloat16_product", 2, _product_gradients, _product_tangent, keeps=True)


def bfloat16_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b`` for float32 matrices on the CPU whose values are all normal bfloat16, or zero."""
    y: torch.Tensor = torch.ops.fewbits.bfloat16_product(a, b)
    return y


def _addition_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = torch.empty(len(a), b.shape[1])
    products.addition_product(array(a), array(b), out=array(y))
    return y


def addition_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b`` of float32 matrices on the CPU, each product one integer sum of bit patterns.

    Its derivatives are such products too, as the paper has them.
    """
    y: torch.Tensor = torch.ops.fewbits.addition_product(a, b)
    return y


def _addition_gradients(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = ctx.saved_tensors
    return addition_product(gradient, b.t()), addition_product(a.t(), gradient)


def _addition_tangent(ctx: Any, of_a: torch.Tensor | None, of_b: torch.Tensor | None) -> torch.Tensor | None:
    a, b = ctx.saved_tensors
    left = None if of_a is None else addition_product(of_a, b)
    right = None if of_b is None else addition_product(a, of_b)
    if left is None or right is None:
        return right if left is None else left
    return left + right


def _each_added(
    info: Any, in_dims: Sequence[int | None], a: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, int]:
    """Multiply each of a batch."""
    of_a, of_b = (
        [t] * info.batch_size if dim is None else t.unbind(dim)
        for t, dim in zip((a, b), in_dims, strict=True)
    )
    return torch.stack([addition_product(x, y) for x, y in zip(of_a, of_b, strict=True)]), 0


define(_addition_product, _empty_product)
derive(LIBRARY, "addition_product", 2, _addition_gradients, _addition_tangent, keeps=True)
torch.library.register_vmap("fewbits::addition_product", _each_added, lib=LIBRARY)
