"""Dequantize, equal to :mod:`fewbits.kernels.reference.dequantize.dequantize`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fewbits.formats import Format
from fewbits.kernels.bits.options import options
from fewbits.kernels.triton.values.bits import to_dtype
from fewbits.kernels.triton.values.decode import load_values, value_of_codes
from fewbits.kernels.triton.values.geometry import (
    fills,
    in_one_line,
    lines_of,
    place_of,
    row_of,
    walk,
    work_of,
)
from fewbits.kernels.triton.values.packing import load_rows, unit_of
from fewbits.kernels.triton.values.spec import spec
from fewbits.kernels.triton.values.tables import tables


@triton.jit
def dequantize_kernel(
    codes: tl.tensor,
    scales: tl.tensor,
    shifts: tl.tensor,
    outer: tl.tensor,
    by_code: tl.tensor,
    y: tl.tensor,
    lines: tl.tensor,
    behind: tl.tensor,
    n: tl.tensor,
    groups: tl.tensor,
    size: tl.tensor,
    parts: tl.tensor,
    f: tl.constexpr,
    unit: tl.constexpr,
    full: tl.constexpr,
    add: tl.constexpr,
    rows: tl.constexpr,
    along: tl.constexpr,
    wide: tl.constexpr,
) -> None:
    """Store the values of packed parts, or add them to what is there."""
    line, before, after, group, part, exists, i, inside = place_of(
        lines, behind, n, groups, size, parts, rows, f.width, along, wide
    )
    width: tl.constexpr = f.width
    first = group * size + part * width
    if unit > 0:
        bits: tl.constexpr = f.grid.bits
        if full > 0:
            begin = row_of(rows, wide) * (width * bits // 8)
            found = load_rows(codes, begin, None, exists, bits, unit, width)
            inside = tl.broadcast_to(exists[:, None], [rows, width])
        else:
            line_bytes = (n * bits + 7) // 8
            begin = line * line_bytes + first * bits // 8
            found = load_rows(codes, begin, (line + 1) * line_bytes, exists, bits, unit, width)
        value = value_of_codes(
            found, scales, shifts, outer, line[:, None], i, first[:, None], inside, exists[:, None], n, f
        )
    else:
        value = load_values(codes, scales, shifts, outer, by_code, line[:, None], i, inside, n, f)
    place = (before * n * behind + after)[:, None] + i * behind  # in C order
    if full > 0:
        place = row_of(rows, wide)[:, None] * width + tl.arange(0, width)[None, :]
    if add:
        value = tl.load(y + place, mask=inside, other=0.0) + value
    tl.store(y + place, to_dtype(value, y.dtype.element_ty), mask=inside)


def dequantize(
    parts: tuple[torch.Tensor | None, ...],
    format: Format,
    shape: tuple[int, ...],
    axis: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return the values of packed parts: codes, scales, shifts and outer scales in C order on one device.

    Args:
        parts: None for those that the format lacks.
        format: one that :func:`fewbits.kernels.triton.values.spec.supports` accepts.
        shape: of the result, not empty.
        axis: along which blocks lie.
        dtype: float32, bfloat16 or float16.
    """
    codes = parts[0]
    assert codes is not None
    y = torch.empty(shape, dtype=dtype, device=codes.device)
    _launch(parts, format, y, axis, add=False)
    return y


def dequantize_add(parts: tuple[torch.Tensor | None, ...], format: Format, into: torch.Tensor) -> None:
    """Add the values of packed parts to ``into``, (n,) float32 in C order, each sum rounded once."""
    _launch(parts, format, into, 0, add=True)


def _launch(
    parts: tuple[torch.Tensor | None, ...], format: Format, y: torch.Tensor, axis: int, *, add: bool
) -> None:
    chosen = options(format)
    f = spec(format, chosen)
    assert f is not None
    _, lines = lines_of(y, axis)
    lines = in_one_line(lines, f)
    work = work_of(f, lines)
    dequantize_kernel[(work.programs,)](
        *(None if part is None else part.contiguous() for part in parts),
        tables(format, chosen, y.device)[3],
        y,
        **walk(lines, work),
        f=f,
        unit=0 if f.grid is None else unit_of(f.grid.bits, work.size, f.width, lines.n),
        full=fills(lines, work, f.width),
        add=add,
        enable_fp_fusion=False,
    )
