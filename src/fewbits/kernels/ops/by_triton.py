"""Operations by Triton's kernels, for tensors whose backend is ``triton``, in the cases that those take.

Triton is imported when the first such tensor comes.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch

from fewbits.formats import Format
from fewbits.graphs import constant_in_graphs
from fewbits.kernels.bits.options import Options, options
from fewbits.kernels.bits.scale_rules import MEAN_RULES
from fewbits.kernels.ops.backends import active_backend, is_native

Parts = tuple[torch.Tensor | None, ...]

_VALUES = (torch.float32, torch.bfloat16, torch.float16)
_MOST_IN_STACK = 65535  # matrices: what chips count along the third axis of programs


def takes(
    x: torch.Tensor, format: Format, chosen: Options | None = None, dtype: torch.dtype | None = None
) -> bool:
    """Return whether the kernels convert ``x``, or to ``dtype``, by these options; the rest is portable."""
    fits = (dtype or x.dtype) in _VALUES and x.numel() > 0
    return fits and active_backend(x.device) == "triton" and _supports(format, chosen or options(format))


@lru_cache(maxsize=512)
def _supports(format: Format, chosen: Options) -> bool:
    from fewbits.kernels.triton.values.spec import supports

    return chosen.scale_rule not in MEAN_RULES and supports(format, chosen)


def fake_quantize(
    x: torch.Tensor, format: Format, axis: int, chosen: Options, amax: float | None
) -> torch.Tensor:
    """Return ``x`` rounded to a format, where :func:`takes` is true."""
    from fewbits.kernels.triton.quantize import quantize as kernels

    with torch.cuda.device_of(x):
        return kernels.fake_quantize(x.detach().resolve_neg(), format, axis, chosen, amax)


def quantize(
    x: torch.Tensor, format: Format, axis: int, chosen: Options, amax: float | None
) -> list[torch.Tensor]:
    """Return the packed parts that the format has, where :func:`takes` is true."""
    from fewbits.kernels.triton.quantize import quantize as kernels

    with torch.cuda.device_of(x):
        parts = kernels.quantize(x.detach().resolve_neg(), format, axis, chosen, amax)
    return [part for part in parts if part is not None]


def quantizes_both(x: torch.Tensor, rows: tuple[Format, Options], columns: tuple[Format, Options]) -> bool:
    """Return whether :func:`quantize_both` packs the matrix ``x``."""
    if x.ndim != 2 or not all(takes(x, *along) for along in (rows, columns)):
        return False
    from fewbits.kernels.triton.quantize import both_axes as kernels

    return kernels.quantizes_both(rows, columns)


def quantize_both(
    x: torch.Tensor, rows: tuple[Format, Options], columns: tuple[Format, Options]
) -> list[torch.Tensor]:
    """Return the packed parts that the formats have, along the rows and then along the columns of ``x``.

    :func:`quantizes_both` is true.
    """
    from fewbits.kernels.triton.quantize import both_axes as kernels

    with torch.cuda.device_of(x):
        found = kernels.quantize_both(x.detach().resolve_neg(), rows, columns)
    return [part for parts in found for part in parts if part is not None]


def dequantize(
    parts: Parts, format: Format, shape: tuple[int, ...], axis: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return the values of packed parts, where :func:`takes` is true."""
    from fewbits.kernels.triton.dequantize import dequantize as kernels

    assert parts[0] is not None
    with torch.cuda.device_of(parts[0]):
        return kernels.dequantize(parts, format, shape, axis, dtype)


def gemv(x: torch.Tensor, parts: Parts, format: Format, lines: int) -> torch.Tensor:
    """Return ``x @ W.T`` for a packed W, where :func:`takes` is true."""
    from fewbits.kernels.triton.gemv import gemv as kernels

    with torch.cuda.device_of(x):
        return kernels.gemv(x.detach().resolve_neg(), parts, format, lines)


def multiplies_rounded(x: torch.Tensor) -> bool:
    """Return whether :func:`rounded_product` is the way to multiply matrices on the device of ``x``.

    It is where the chip multiplies by block scales, and where Triton is interpreted. Other chips multiply
    values that were rounded before by their library's own kernels.
    """
    return not is_native(x) and active_backend(x.device) == "triton" and _scales_products(x.device)


@constant_in_graphs
def _scales_products(device: torch.device) -> bool:
    from fewbits.kernels.triton.gemm.product import scales_products

    return device.type == "cpu" or scales_products(device)


def multiplies_packed(a: Format, b: Format) -> bool:
    """Return whether :func:`rounded_product` multiplies these formats however both were rounded."""
    from fewbits.kernels.triton.gemm import product as products

    return None not in (_as_they_are(a), _as_they_are(b)) and products.multiplies(a, b)


def rounded_product(
    a: torch.Tensor,
    b: torch.Tensor,
    formats: tuple[Format | None, Format | None],
    chosen: tuple[Options | None, Options | None],
    dtype: torch.dtype,
    parts: tuple[Parts | None, Parts | None] = (None, None),
) -> torch.Tensor | None:
    """Return ``a @ b``, (..., m, k) times (..., k, n), of operands that are rounded along k first.

    Both are packed once, and multiplied packed. None where Triton has no kernel for it. Operands without
    options are in their formats already; those with ``parts`` were packed along k before.
    """
    (format_a, format_b), (options_a, options_b) = formats, chosen
    if format_a is None or format_b is None:
        return None
    options_a, options_b = options_a or _as_they_are(format_a), options_b or _as_they_are(format_b)
    if options_a is None or options_b is None:
        return None
    if not (multiplies_rounded(a) and takes(a, format_a, options_a) and takes(b, format_b, options_b)):
        return None
    from fewbits.kernels.triton.gemm import product as products

    stack = math.prod(a.shape[:-2])
    if stack > _MOST_IN_STACK or not products.multiplies(format_a, format_b):
        return None
    with torch.cuda.device_of(a):
        left = parts[0] or _packed(a, format_a, -1, options_a)
        right = parts[1] or _packed(b, format_b, -2, options_b)
        m, k, n = *a.shape[-2:], b.shape[-1]
        shape = (stack, m, n, k)
        return products.product(left, format_a, right, format_b, shape, dtype).view(*a.shape[:-1], n)


@lru_cache(maxsize=256)
def _as_they_are(format: Format) -> Options | None:
    """Return options by which values of a format are packed as they are; None where none is sure to.

    The smallest power of two below which no value of the block saturates is never above the one that the
    values were rounded with, so each is a multiple of a step again.
    """
    scales, element = format.groups.scales, format.element
    if scales is None or not scales.power_of_two or format.groups.shifts is not None:
        return None
    return options(format, scale_rule="rceil") if element.min == -element.max else None


def top_k(x: torch.Tensor, k: int) -> torch.Tensor | None:
    """Return the places of the k largest magnitudes of a flat tensor.

    None where the backend is another, and of more values than its kernels count in 32 bits.
    """
    if active_backend(x.device) != "triton" or not 0 < k <= x.numel() < 2**31:
        return None
    from fewbits.kernels.triton.top_k import top_k as kernels

    with torch.cuda.device_of(x):
        return kernels.top_k(x.detach().resolve_neg(), k)


def dequantize_add(parts: Parts, format: Format, into: torch.Tensor) -> None:
    """Add the values of packed parts to a flat tensor, where :func:`takes` is true of it."""
    from fewbits.kernels.triton.dequantize import dequantize as kernels

    with torch.cuda.device_of(into):
        kernels.dequantize_add(parts, format, into.detach())


def quantize_with_feedback(
    x: torch.Tensor, residual: torch.Tensor, format: Format, chosen: Options, parts: Parts
) -> None:
    """Write the parts of ``x + residual``, and to the residual what is left, where :func:`takes` is true."""
    from fewbits.kernels.triton.quantize import quantize as kernels

    codes, scales, shifts, outer = parts
    assert codes is not None
    with torch.cuda.device_of(x):
        kernels.quantize_with_feedback(
            x.detach().resolve_neg(), residual.detach(), format, chosen, (codes, scales, shifts, outer)
        )


def _packed(x: torch.Tensor, format: Format, axis: int, chosen: Options) -> Any:
    from fewbits.kernels.triton.quantize import quantize as kernels

    return kernels.quantize(x.detach().resolve_neg(), format, axis, chosen)
