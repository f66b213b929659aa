"""A packed matrix times few vectors: its codes are decoded in registers, never to memory."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fewbits.formats import Format
from fewbits.kernels.bits.options import options
from fewbits.kernels.triton.gemv.words import gemv_words, reads_words
from fewbits.kernels.triton.values.bits import to_dtype, to_float32
from fewbits.kernels.triton.values.decode import (
    element_value,
    load_outer,
    load_scales,
    load_values,
    scale_value,
)
from fewbits.kernels.triton.values.packing import load_rows, unit_of
from fewbits.kernels.triton.values.quick import power_of
from fewbits.kernels.triton.values.spec import Spec, spec
from fewbits.kernels.triton.values.tables import tables

_WIDTH = 256  # values of a line at once: a warp reads 128 bytes of 4-bit codes, and x is read from the caches
_PRODUCTS = 4096  # in a program at once: 32 registers of each of 128 threads
_MOST_VECTORS = 8  # that share a decoded matrix; of more, each eight decode it anew


@triton.jit
def gemv_kernel(
    x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    shifts: tl.tensor,
    outer: tl.tensor,
    by_code: tl.tensor,
    y: tl.tensor,
    vectors: tl.tensor,
    lines: tl.tensor,
    n: tl.tensor,
    f: tl.constexpr,
    unit: tl.constexpr,
    batch: tl.constexpr,
    rows: tl.constexpr,
    width: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    """Store the products of ``rows`` lines with ``batch`` vectors."""
    first = tl.program_id(0)
    if wide:
        first = first.to(tl.int64)
    line = first * rows + tl.arange(0, rows)
    vector = tl.program_id(1) * batch + tl.arange(0, batch)
    if wide:
        vector = vector.to(tl.int64)
    sums = tl.zeros([batch, rows, width], tl.float32)
    for start in range(0, n, width):
        i = start + tl.arange(0, width)
        inside = (line < lines)[:, None] & (i < n)[None, :]
        if unit > 0:
            w = _tile(codes, scales, outer, line, line < lines, start, n, f, unit, width)
            w = tl.where(inside, w, 0.0)
        else:
            # A place of its own for each value: blocks of 64 bits if lines are.
            at = line[:, None] * 0 + i[None, :]
            w = load_values(codes, scales, shifts, outer, by_code, line[:, None], at, inside, n, f)
        there = (vector < vectors)[:, None] & (i < n)[None, :]
        v = to_float32(tl.load(x + vector[:, None] * n + i[None, :], mask=there, other=0.0))
        sums += v[:, None, :] * w[None, :, :]
    found = tl.sum(sums, axis=2)
    there = (vector < vectors)[:, None] & (line < lines)[None, :]
    tl.store(y + vector[:, None] * lines + line[None, :], to_dtype(found, y.dtype.element_ty), mask=there)


@triton.jit
def _tile(
    codes: tl.tensor,
    scales: tl.tensor,
    outer: tl.tensor,
    line: tl.tensor,
    exists: tl.tensor,
    start: tl.tensor,
    n: tl.tensor,
    f: tl.constexpr,
    unit: tl.constexpr,
    width: tl.constexpr,
) -> Any:
    """Return the values of whole blocks of some lines, (rows, width); each scale is read once."""
    rows: tl.constexpr = line.shape[0]
    size: tl.constexpr = f.per_scale if f.per_scale > 0 else width
    blocks: tl.constexpr = width // size
    of_scale: tl.constexpr = f.scale
    none = tl.zeros([1, 1], tl.int32)
    bits: tl.constexpr = f.grid.bits
    line_bytes = (n * bits + 7) // 8
    begin = line * line_bytes + start * bits // 8
    found = load_rows(codes, begin, (line + 1) * line_bytes, exists, bits, unit, width)
    y = element_value(found, none, f)
    if f.scaling != "none":
        first = start + tl.arange(0, blocks)[None, :] * size
        there = exists[:, None] & (first < n)
        whole = load_scales(scales, line[:, None], line[:, None] * 0 + first, there, n, f)
        if f.scaling == "power":
            factor = tl.where(whole == of_scale.nan, float("nan"), power_of(whole + of_scale.emin))
        else:
            factor = scale_value(whole, of_scale)
        y = tl.reshape(tl.reshape(y, [rows, blocks, size]) * factor[:, :, None], [rows, width])
        if f.scaling == "outer":
            y = y * load_outer(outer, line, exists, f)[:, None]
    return y


def _unit(f: Spec, width: int, n: int) -> int:
    """Return by how many codes a tile is read whose blocks are whole; 0 where each value is read alone."""
    whole = f.per_scale == 0 or (width % f.per_scale == 0 and f.per_scale & (f.per_scale - 1) == 0)
    if f.grid is None or f.quick is None or f.per_shift or not whole:
        return 0
    return unit_of(f.grid.bits, width, width, n)


def is_wide(vectors: int, lines: int, n: int) -> bool:
    """Return whether places of bits of the matrix, or of vectors or products, need more than 31 bits."""
    return max(32 * lines * n, vectors * n, vectors * lines) >= 2**31


def gemv(x: torch.Tensor, parts: tuple[torch.Tensor | None, ...], format: Format, lines: int) -> torch.Tensor:
    """Return ``x @ W.T`` in x's dtype for a packed W, (lines, n), with its blocks along n.

    Sums are float32, rounded to x's dtype once; with u = 2^-24 the error before that is at most (n + 2) u sum
    |x| |W|.

    Args:
        x: (batch, n), float32, bfloat16 or float16, not empty.
        parts: of W, in C order; None for those that the format lacks.
        format: one that :func:`fewbits.kernels.triton.values.spec.supports` accepts.
        lines: of W.
    """
    chosen = options(format)
    f = spec(format, chosen)
    assert f is not None
    vectors, n = x.shape
    if reads_words(f, n):
        return gemv_words(x, parts, f, lines, wide=is_wide(vectors, lines, n))
    y = torch.empty(vectors, lines, dtype=x.dtype, device=x.device)
    batch = min(triton.next_power_of_2(vectors), _MOST_VECTORS)
    width = min(triton.next_power_of_2(n), _WIDTH)
    rows = min(max(1, _PRODUCTS // (batch * width)), triton.next_power_of_2(lines))
    # Here nothing but the order of sums depends on contraction, and it halves the instructions.
    gemv_kernel[(triton.cdiv(lines, rows), triton.cdiv(vectors, batch))](
        x.contiguous(),
        *(None if part is None else part.contiguous() for part in parts),
        tables(format, chosen, x.device)[3],
        y,
        vectors,
        lines,
        n,
        f=f,
        unit=_unit(f, width, n),
        batch=batch,
        rows=rows,
        width=width,
        wide=is_wide(vectors, lines, n),
        enable_fp_fusion=True,
    )
    return y
