"""Operations by Triton's kernels, for tensors whose backend is ``triton``, in the cases that those take.

Triton is imported when the first such tensor comes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from fewbits.formats import Format
from fewbits.kernels.bits.options import Options, options
from fewbits.kernels.ops.backends import active_backend

Parts = tuple[torch.Tensor | None, ...]

_VALUES = (torch.float32, torch.bfloat16, torch.float16)


def takes(
    x: torch.Tensor, format: Format, chosen: Options | None = None, dtype: torch.dtype | None = None
) -> bool:
    """Return whether the kernels convert ``x``, or to ``dtype``, by the chosen options; the rest is portable."""
    fits = (dtype or x.dtype) in _VALUES and x.numel() > 0
    return fits and active_backend(x.device) == "triton" and _supports(format, chosen or options(format))


@lru_cache(maxsize=512)
def _supports(format: Format, chosen: Options) -> bool:
    from fewbits.kernels.triton.values.spec import supports

    return supports(format, chosen)


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


def multiplies(x: torch.Tensor) -> bool:
    """Return whether :func:`rounded_product` is the way to multiply matrices on the device of ``x``.

    It is where the chip multiplies by block scales, and where Triton is interpreted. Other chips multiply
    values that were rounded before by their library's own kernels.
    """
    if active_backend(x.device) != "triton":
        return False
    from fewbits.kernels.triton.gemm.product import scales_products

    return x.is_cpu or scales_products(x.device)


def multiplies_formats(a: Format, b: Format) -> bool:
    """Return whether :func:`rounded_product` multiplies matrices in these formats."""
    from fewbits.kernels.triton.gemm.product import multiplies as has_product

    return has_product(a, b)


def rounded_product(
    a: torch.Tensor, b: torch.Tensor, rounded: tuple[tuple[Format, Options], ...], dtype: torch.dtype
) -> torch.Tensor:
    """Return ``a @ b``, (..., m, k) times (..., k, n), of operands that are rounded along k first.

    Both are packed once, and multiplied packed.
    """
    from fewbits.kernels.triton.gemm import product as products

    (format_a, options_a), (format_b, options_b) = rounded
    with torch.cuda.device_of(a):
        left = _packed(a, format_a, -1, options_a)
        right = _packed(b, format_b, -2, options_b)
        m, k, n = *a.shape[-2:], b.shape[-1]
        shape = (a.shape[:-2].numel(), m, n, k)
        return products.product(left, format_a, right, format_b, shape, dtype).view(*a.shape[:-1], n)


def _packed(x: torch.Tensor, format: Format, axis: int, chosen: Options) -> Any:
    from fewbits.kernels.triton.quantize import quantize as kernels

    return kernels.quantize(x.detach().resolve_neg(), format, axis, chosen)
