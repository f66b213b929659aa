"""The operators that multiply: a packed matrix with vectors, bfloat16 values, and without multiplications."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fewbits.formats import Format
from fewbits.formats.pattern import Pattern, pattern
from fewbits.kernels.arrays import lent, products
from fewbits.kernels.arrays.values import smallest
from fewbits.kernels.bits.options import Choices, Options, decide, read_format, read_options
from fewbits.kernels.ops.derivatives import derive
from fewbits.kernels.ops.direct import is_ordinary, is_recorded
from fewbits.kernels.ops.library import LIBRARY, define
from fewbits.kernels.ops.tensors import are_lent, array, is_lent, lent_parts, packed


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
    y, parts = torch.empty((x.shape[0], lines)), (codes, scales, shifts, outer)
    if x.is_cpu and lines and x.is_contiguous() and are_lent(parts):
        rows = x if x.dtype == torch.float32 else x.float()
        if is_lent(rows) and _gemv_lent(rows, parts, y, format, sparsity, x.dtype == torch.bfloat16):
            return y if rows is x else y.to(x.dtype)
    kept = None if sparsity is None else pattern(sparsity)
    products.gemv(
        array(x.cpu().float()),
        packed(parts),
        read_format(format),
        lines,
        kept,
        bfloat16=x.dtype == torch.bfloat16,
        out=array(y),
    )
    return y.to(x.device, x.dtype)


def _gemv_lent(
    rows: torch.Tensor,
    parts: tuple[torch.Tensor | None, ...],
    y: torch.Tensor,
    format: str,
    sparsity: str | None,
    bfloat16: bool,
) -> bool:
    """Write the product of rows in C order where ``y`` lies; return whether a compiled kernel does that."""
    batch, n = rows.shape
    return lent.gemv(
        (rows.data_ptr(), batch, n),
        lent_parts(parts),
        (y.data_ptr(), batch, y.shape[1]),
        format,
        sparsity,
        bfloat16=bfloat16 and smallest(array(rows)) >= products.SMALLEST_NORMAL,
    )


def _empty_rows(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    lines = rest[-1]
    return x.new_empty((x.shape[0], lines))


define(_gemv, _empty_rows)


def _gemv_gradients(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, codes, *shared = ctx.saved_tensors
    format, sparsity, lines = ctx.others
    n = x.shape[-1]
    if sparsity is not None:
        codes = torch.ops.fewbits.expand(codes, format, n, sparsity)
    weight = torch.ops.fewbits.dequantize(codes, *shared, format, (lines, n), 1, x.dtype)
    return gradient @ weight, None, None, None, None


def _gemv_tangent(ctx: Any, tangent: torch.Tensor | None, *_: Any) -> torch.Tensor | None:
    _, *parts = ctx.saved_tensors
    return None if tangent is None else torch.ops.fewbits.gemv(tangent, *parts, *ctx.others)


derive(LIBRARY, "gemv", 5, _gemv_gradients, _gemv_tangent, keeps=True)


def _rows_of_a_batch(
    info: Any, in_dims: Sequence[int | None], x: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, int]:
    """Multiply the rows of all items at once, or one by one where each item has a matrix of its own."""
    if all(dim is None for dim in in_dims[1:]) and in_dims[0] is not None:
        batch = x.movedim(in_dims[0], 0)
        return torch.ops.fewbits.gemv(batch.flatten(0, 1), *rest).unflatten(0, batch.shape[:2]), 0
    items = [
        [given] * info.batch_size if dim is None else given.unbind(dim)
        for given, dim in zip((x, *rest), in_dims, strict=True)
    ]
    return torch.stack([torch.ops.fewbits.gemv(*item) for item in zip(*items, strict=True)]), 0


torch.library.register_vmap("fewbits::gemv", _rows_of_a_batch, lib=LIBRARY)


def gemv(
    x: torch.Tensor,
    parts: tuple[torch.Tensor | None, ...],
    format: Format,
    lines: int,
    sparsity: Pattern | None = None,
) -> torch.Tensor:
    """Return ``x @ W.T`` in x's dtype, W packed with its blocks along the last axis, summed in float32."""
    kept = None if sparsity is None else str(sparsity)
    codes, scales, shifts, outer = parts
    assert codes is not None
    direct = is_ordinary(x, codes) and not is_recorded(x)
    call = _gemv if direct else torch.ops.fewbits.gemv
    y: torch.Tensor = call(x, codes, scales, shifts, outer, format.grammar, kept, lines)
    return y


@torch.library.custom_op("fewbits::gemv_int8", mutates_args=())
def _gemv_int8(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor | None,
    shifts: torch.Tensor | None,
    outer: torch.Tensor | None,
    format: str,
    sparsity: str | None,
    lines: int,
) -> torch.Tensor:
    weight, y = packed((codes, scales, shifts, outer)), torch.empty(len(x), lines)
    kept = None if sparsity is None else pattern(sparsity)
    products.gemv_int8(array(x.cpu().float()), weight, read_format(format), lines, kept, out=array(y))
    return y.to(x.device, x.dtype)


_gemv_int8.register_fake(_empty_rows)


def gemv_int8(
    x: torch.Tensor,
    parts: tuple[torch.Tensor | None, ...],
    format: Format,
    lines: int,
    sparsity: Pattern | None = None,
) -> torch.Tensor:
    """Return ``r @ W.T`` in x's dtype, r being ``x`` in int8 with a float32 scale for each 32 values."""
    kept = None if sparsity is None else str(sparsity)
    y: torch.Tensor = _gemv_int8(x, *parts, format.grammar, kept, lines)
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


def _format(text: str) -> Format | None:
    return read_format(text) if text else None


def _options(text: str) -> Options | None:
    return read_options(text, 0) if text else None


def _rounded_product(
    a: torch.Tensor,
    b: torch.Tensor,
    format_a: str,
    format_b: str,
    options_a: str,
    options_b: str,
    dtype: torch.dtype,
) -> torch.Tensor:
    y = torch.empty((*a.shape[:-1], b.shape[-1]), dtype=dtype)
    if not y.numel():
        return y
    stacks = [x.reshape(-1, *x.shape[-2:]) for x in (a, b, y)]
    left, right, out = map(array, stacks)
    formats = _format(format_a), _format(format_b)
    products.rounded_product(left, right, formats, (_options(options_a), _options(options_b)), out)
    return y


def _empty_stack(a: torch.Tensor, b: torch.Tensor, *rest: Any) -> torch.Tensor:
    return a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=rest[-1])


define(_rounded_product, _empty_stack)


def _rounded_gradients(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = ctx.saved_tensors
    return (gradient.to(b.dtype) @ b.mT).to(a.dtype), (a.mT @ gradient.to(a.dtype)).to(b.dtype)


def _rounded_tangent(ctx: Any, of_a: torch.Tensor | None, of_b: torch.Tensor | None) -> torch.Tensor | None:
    return _product_tangent(ctx, of_a, of_b)


def _each_rounded(
    info: Any, in_dims: Sequence[int | None], a: torch.Tensor, b: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, int]:
    """Take the batch for one more dimension of stacks."""
    of_a, of_b = (
        t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip((a, b), in_dims, strict=False)
    )
    return torch.ops.fewbits.rounded_product(of_a, of_b, *rest), 0


derive(LIBRARY, "rounded_product", 2, _rounded_gradients, _rounded_tangent, keeps=True)
torch.library.register_vmap("fewbits::rounded_product", _each_rounded, lib=LIBRARY)


def rounded_product(
    a: torch.Tensor,
    b: torch.Tensor,
    formats: tuple[Format | None, Format | None],
    choices: tuple[Choices | None, Choices | None] = (None, None),
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Return ``a @ b``, (..., m, k) times (..., k, n) on the CPU with the same leading axes.

    Args:
        a: float32 or bfloat16.
        b: likewise.
        formats: of the values of a and b, with their blocks along k; None for any numbers.
        choices: how a and b are rounded to their formats first, of what :func:`rounds_in_product` accepts;
            None where they are rounded already. The derivatives are those of the product of a and b as they
            are given.
        dtype: of the result, float32 or bfloat16.
    """
    texts = ["" if f is None else f.grammar for f in formats]
    chosen = [
        "" if f is None or c is None else decide(f, c).text for f, c in zip(formats, choices, strict=True)
    ]
    y: torch.Tensor = torch.ops.fewbits.rounded_product(a, b, *texts, *chosen, dtype)
    return y


def rounds_in_product(format: Format, choices: Choices) -> bool:
    """Return whether :func:`rounded_product` rounds to ``format`` by these choices."""
    return products.rounds_in_product(format, decide(format, choices))


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
