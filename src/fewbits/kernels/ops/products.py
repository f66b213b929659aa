"""The operators that multiply: a packed matrix with vectors, bfloat16 values, and without multiplications."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fewbits.formats import Format
from fewbits.formats.pattern import Pattern, pattern
from fewbits.kernels import exact_arithmetic, portable
from fewbits.kernels.arrays import lent, products
from fewbits.kernels.arrays.nm import zeros
from fewbits.kernels.bits.options import Choices, Options, decide, read_format, read_options
from fewbits.kernels.ops import by_torch, by_triton, tensors
from fewbits.kernels.ops.backends import is_native
from fewbits.kernels.ops.by_triton import Parts
from fewbits.kernels.ops.derivatives import derive
from fewbits.kernels.ops.direct import is_ordinary, is_recorded
from fewbits.kernels.ops.library import LIBRARY, define
from fewbits.kernels.ops.memory import empty
from fewbits.kernels.ops.no_autocast import no_autocast
from fewbits.kernels.ops.tensors import are_lent, array, is_lent, lent_parts, packed
from fewbits.kernels.reference.gemv.int8 import ACTIVATION


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
    parts = (codes, scales, shifts, outer)
    if not is_native(x):
        if sparsity is None and lines and by_triton.takes(x, read_format(format)):
            return by_triton.gemv(x, parts, read_format(format), lines)
        with exact_arithmetic(), no_autocast(x):
            return portable.gemv(x.float(), parts, *_matrix(format, lines, sparsity)).to(x.dtype)
    found = _lent_gemv(x, parts, format, sparsity, lines)
    if found is not None:
        return found
    y = empty((x.shape[0], lines), torch.float32)
    rows = array(x.float())
    kept = None if sparsity is None else pattern(sparsity)
    normal = x.dtype == torch.bfloat16 and products.is_normal(rows)
    products.gemv(rows, packed(parts), read_format(format), lines, kept, bfloat16=normal, out=array(y))
    return y.to(x.dtype)


def _lent_gemv(
    x: torch.Tensor,
    parts: Sequence[torch.Tensor | None],
    format: str,
    sparsity: str | None,
    lines: int,
    activation: Format | None = None,
) -> torch.Tensor | None:
    """Return the product in memory that tensors lend, if a compiled kernel reads theirs where it lies."""
    if not (lines and is_lent(x) and x.is_contiguous() and are_lent(parts)):
        return None
    y = empty((x.shape[0], lines), x.dtype)
    lending = tensors.lent(x), len(x), lent_parts(parts), tensors.lent(y)
    return y if lent.gemv(*lending, format, sparsity, activation) else None


def _matrix(format: str, lines: int, sparsity: str | None) -> tuple[Format, int, Pattern | None, int]:
    """Return what products by operations of torch take of a packed matrix, next to its parts."""
    fmt = read_format(format)
    return fmt, lines, *((None, 0) if sparsity is None else (pattern(sparsity), zeros(fmt)[0]))


def _empty_rows(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    lines = rest[-1]
    return x.new_empty((x.shape[0], lines))


define(_gemv, _empty_rows)


def _gemv_gradients(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    codes, *shared = ctx.saved_tensors
    format, sparsity, lines = ctx.others
    n = ctx.shape[-1]
    if sparsity is not None:
        codes = torch.ops.fewbits.expand(codes, format, n, sparsity)
    weight = torch.ops.fewbits.dequantize(codes, *shared, format, (lines, n), 1, gradient.dtype)
    return by_torch.product(gradient, weight), None, None, None, None


def _gemv_tangent(ctx: Any, tangent: torch.Tensor | None, *_: Any) -> torch.Tensor | None:
    return None if tangent is None else torch.ops.fewbits.gemv(tangent, *ctx.saved_tensors, *ctx.others)


derive(LIBRARY, "gemv", 5, _gemv_gradients, _gemv_tangent, keeps=1)


def rows_of_a_batch(operator: Callable[..., torch.Tensor]) -> Callable[..., tuple[torch.Tensor, int]]:
    """Return the rule of torch.vmap for an operator of rows and the parts of a packed matrix."""

    def rule(
        info: Any, in_dims: Sequence[int | None], x: torch.Tensor, *rest: Any
    ) -> tuple[torch.Tensor, int]:
        # The rows of all items at once, or one by one where each item has a matrix of its own.
        if all(dim is None for dim in in_dims[1:]) and in_dims[0] is not None:
            batch = x.movedim(in_dims[0], 0)
            return operator(batch.flatten(0, 1), *rest).unflatten(0, batch.shape[:2]), 0
        items = [
            [given] * info.batch_size if dim is None else given.unbind(dim)
            for given, dim in zip((x, *rest), in_dims, strict=True)
        ]
        return torch.stack([operator(*item) for item in zip(*items, strict=True)]), 0

    return rule


torch.library.register_vmap("fewbits::gemv", rows_of_a_batch(torch.ops.fewbits.gemv), lib=LIBRARY)


def gemv(
    x: torch.Tensor,
    parts: tuple[torch.Tensor | None, ...],
    format: Format,
    lines: int,
    sparsity: Pattern | None = None,
) -> torch.Tensor:
    """Return ``x @ W.T`` in x's dtype, W packed with its blocks along the last axis, summed in float32."""
    return _call(_gemv, torch.ops.fewbits.gemv, x, parts, format, lines, sparsity)


def _call(
    kernel: Callable[..., torch.Tensor],
    operator: Callable[..., torch.Tensor],
    x: torch.Tensor,
    parts: tuple[torch.Tensor | None, ...],
    format: Format,
    lines: int,
    sparsity: Pattern | None,
) -> torch.Tensor:
    """Call an operator, or its kernel at once where the dispatcher would do nothing else."""
    kept = None if sparsity is None else str(sparsity)
    codes, scales, shifts, outer = parts
    assert codes is not None
    call = kernel if is_ordinary(x, codes) and not is_recorded(x) else operator
    return call(x, codes, scales, shifts, outer, format.grammar, kept, lines)


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
    parts = (codes, scales, shifts, outer)
    if not is_native(x):
        with exact_arithmetic(), no_autocast(x):
            return portable.gemv_int8(x.float(), parts, *_matrix(format, lines, sparsity)).to(x.dtype)
    found = _lent_gemv(x, parts, format, sparsity, lines, ACTIVATION)
    if found is not None:
        return found
    y = empty((len(x), lines), torch.float32)
    kept = None if sparsity is None else pattern(sparsity)
    products.gemv_int8(array(x.float()), packed(parts), read_format(format), lines, kept, out=array(y))
    return y.to(x.dtype)


define(_gemv_int8, _empty_rows)
# The rounding of x passes derivatives on as they are.
derive(LIBRARY, "gemv_int8", 5, _gemv_gradients, _gemv_tangent, keeps=1)
torch.library.register_vmap("fewbits::gemv_int8", rows_of_a_batch(torch.ops.fewbits.gemv_int8), lib=LIBRARY)


def gemv_int8(
    x: torch.Tensor,
    parts: tuple[torch.Tensor | None, ...],
    format: Format,
    lines: int,
    sparsity: Pattern | None = None,
) -> torch.Tensor:
    """Return ``r @ W.T`` in x's dtype, r being ``x`` in int8 with a float32 scale for each 32 values.

    Derivatives are those of ``x @ W.T``.
    """
    return _call(_gemv_int8, torch.ops.fewbits.gemv_int8, x, parts, format, lines, sparsity)


def _bfloat16_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if not is_native(a):
        return by_torch.product(a, b)
    y = empty((len(a), b.shape[1]), torch.float32)
    products.bfloat16_product(array(a), array(b), out=array(y))
    return y


def _empty_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.new_empty((a.shape[0], b.shape[1]))


define(_bfloat16_product, _empty_product)


def _product_gradients(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = ctx.saved_tensors
    return by_torch.product(gradient, b.t()), by_torch.product(a.t(), gradient)


def _product_tangent(ctx: Any, of_a: torch.Tensor | None, of_b: torch.Tensor | None) -> torch.Tensor | None:
    a, b = ctx.saved_tensors
    left = None if of_a is None else by_torch.product(of_a, b)
    right = None if of_b is None else by_torch.product(a, of_b)
    if left is None or right is None:
        return right if left is None else left
    return left + right


derive(LIBRARY, "bfloat16_product", 2, _product_gradients, _product_tangent, keeps=0)


def bfloat16_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b`` for float32 matrices whose values are all normal bfloat16, or zero."""
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
    codes_a: torch.Tensor | None = None,
    scales_a: torch.Tensor | None = None,
    codes_b: torch.Tensor | None = None,
    scales_b: torch.Tensor | None = None,
    lower: str = "",
) -> torch.Tensor:
    formats, chosen = (_format(format_a), _format(format_b)), (_options(options_a), _options(options_b))
    if not is_native(a):
        parts = _parts(codes_a, scales_a), _parts(codes_b, scales_b)
        found = by_triton.rounded_product(a, b, formats, chosen, dtype, parts)
        if found is not None:
            return found
        with exact_arithmetic():
            of_a, of_b = _rounded(a, -1, format_a, options_a), _rounded(b, -2, format_b, options_b)
            return by_torch.product(of_a.float(), of_b.float()).to(dtype)
    y = empty((*a.shape[:-1], b.shape[-1]), dtype)
    if not y.numel() or not a.shape[-1]:
        return y.zero_()
    stacks = [x.reshape(-1, *x.shape[-2:]) for x in (a, b, y)]
    left, right, out = map(array, stacks)
    products.rounded_product(left, right, formats, chosen, out, lower)
    return y


def _parts(codes: torch.Tensor | None, scales: torch.Tensor | None) -> Parts | None:
    return None if codes is None else (codes, scales, None, None)


def _rounded(x: torch.Tensor, axis: int, format: str, options: str) -> torch.Tensor:
    """Return a factor rounded to its format, if it has options that say how."""
    if not options:
        return x
    return portable.fake_quantize(x, read_format(format), x.ndim + axis, read_options(options, 0), None)


def _empty_stack(
    a: torch.Tensor,
    b: torch.Tensor,
    format_a: str,
    format_b: str,
    options_a: str,
    options_b: str,
    dtype: torch.dtype,
    *_: Any,
) -> torch.Tensor:
    return a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=dtype)


define(_rounded_product, _empty_stack)


def _rounded_gradients(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = ctx.saved_tensors
    of_a = by_torch.product(gradient.to(b.dtype), b.mT).to(a.dtype)
    return of_a, by_torch.product(a.mT, gradient.to(a.dtype)).to(b.dtype)


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


derive(LIBRARY, "rounded_product", 2, _rounded_gradients, _rounded_tangent, keeps=0)
torch.library.register_vmap("fewbits::rounded_product", _each_rounded, lib=LIBRARY)


def rounded_product(
    a: torch.Tensor,
    b: torch.Tensor,
    formats: tuple[Format | None, Format | None],
    choices: tuple[Choices | None, Choices | None] = (None, None),
    dtype: torch.dtype = torch.float32,
    parts: tuple[Parts, Parts] = ((), ()),
    lower: str = "",
) -> torch.Tensor:
    """Return ``a @ b``, (..., m, k) times (..., k, n) with the same leading axes.

    On another device than the CPU, sums are those of torch.matmul.

    Args:
        a: float32 or bfloat16.
        b: likewise.
        formats: of the values of a and b, with their blocks along k; None for any numbers.
        choices: how a and b are rounded to their formats first, of what :func:`rounds_in_product` accepts;
            None where they are rounded already. The derivatives are those of the product of a and b as they
            are given.
        dtype: of the result, float32 or bfloat16.
        parts: codes and scales of matrices that :func:`quantize_both` packed along k by these choices, which
            its backend then multiplies in place of the values; of others none.
        lower: which matrix is lower triangular, so that a backend may leave out what lies beyond its diagonal
            (column j of row i where j > i): ``result``, of which nobody wants that part, zeros or sums as may
            be; ``left``, ``left transposed`` or ``right``, a factor, or the transpose of one, that is zero
            there once it is rounded. The latter change no result: where a value is infinite or NaN, nothing
            is left out.
    """
    texts = ["" if f is None else f.grammar for f in formats]
    chosen = [
        "" if f is None or c is None else decide(f, c).text for f, c in zip(formats, choices, strict=True)
    ]
    given: list[Any] = [part for of in parts for part in of or (None, None)] if any(parts) or lower else []
    given += [lower] if lower else []
    y: torch.Tensor = torch.ops.fewbits.rounded_product(a, b, *texts, *chosen, dtype, *given)
    return y


def rounds_in_product(format: Format, choices: Choices) -> bool:
    """Return whether :func:`rounded_product` rounds to ``format`` by these choices."""
    return products.rounds_in_product(format, decide(format, choices))


def _addition_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if not is_native(a):
        with exact_arithmetic():
            return portable.addition_product(a, b)
    y = empty((len(a), b.shape[1]), torch.float32)
    products.addition_product(array(a), array(b), out=array(y))
    return y


def addition_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b`` of float32 matrices, each product one integer sum of bit patterns.

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
derive(LIBRARY, "addition_product", 2, _addition_gradients, _addition_tangent, keeps=0)
torch.library.register_vmap("fewbits::addition_product", _each_added, lib=LIBRARY)
