"""Products of a packed matrix with few vectors: its values, then a product of torch."""

from __future__ import annotations

import torch

from fewbits.formats import Format
from fewbits.formats.pattern import Pattern
from fewbits.kernels.portable.dequantize.dequantize import dequantize
from fewbits.kernels.portable.gemv import int8
from fewbits.kernels.portable.nm.stream import expand

Parts = tuple[torch.Tensor | None, ...]


def gemv(
    x: torch.Tensor, parts: Parts, format: Format, lines: int, sparsity: Pattern | None, zero: int
) -> torch.Tensor:
    """Return ``x @ W.T`` in float32, (batch, lines), W packed with its blocks along its last axis.

    Sums are those of torch.mm, in float32: with u = 2^-24 the error is at most (n + 2) u sum |x| |W|, unless
    torch.set_float32_matmul_precision was told to multiply less precisely.

    Args:
        x: (batch, n) float32.
        parts: codes, scales, shifts and outer scales of W, (lines, n).
        format: of W.
        lines: of W.
        sparsity: of W, whose codes are streams then.
        zero: the code of what is not kept.
    """
    n, (codes, *scales) = x.shape[1], parts
    if sparsity is not None:
        assert codes is not None
        codes, _ = expand(codes, sparsity, format.element.bits, n, zero)
    return x @ dequantize((codes, *scales), format, (lines, n), 1, torch.float32).t()


def gemv_int8(
    x: torch.Tensor, parts: Parts, format: Format, lines: int, sparsity: Pattern | None, zero: int
) -> torch.Tensor:
    """Return ``r @ W.T``, r being ``x`` rounded to int8 with a float32 scale for each 32 values of a row.

    The integers of a W that holds such are multiplied as kernels/reference/gemv/int8.py defines. With any
    other W, and with a sparse one, it is the product of :func:`gemv` with r.
    """
    if sparsity is None and int8.holds_integers(format):
        return int8.product(x, parts, format, lines)
    integers, scales = int8.rounded(x)
    values = integers * scales.repeat_interleave(32, 1)[:, : x.shape[1]]
    return gemv(values, parts, format, lines, sparsity, zero)
