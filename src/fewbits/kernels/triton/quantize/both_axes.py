"""Both roundings of a matrix that training needs, of its rows and of its columns, from one read.

Rounding and transposing do not commute (Rouhani et al., Microscaling Data Formats for Deep Learning, 2023,
figure 2): the product of the forward pass sums along rows, one of the backward pass along columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fewbits.formats import Format
from fewbits.kernels.bits.options import Options
from fewbits.kernels.triton.quantize.quantize import Parts, Units, empty, seeds, units_of
from fewbits.kernels.triton.quantize.rounding import round_tile
from fewbits.kernels.triton.values.geometry import Lines, work_of
from fewbits.kernels.triton.values.magnitudes import read
from fewbits.kernels.triton.values.packing import store_codes
from fewbits.kernels.triton.values.spec import Spec, spec
from fewbits.kernels.triton.values.stochastic_draws import draws

_TILE = 64  # rows and columns: 32 values for each of 128 threads, twice


@triton.jit
def _store_rounded(
    v: tl.tensor,
    positions: tl.tensor,
    inside: tl.tensor,
    line: tl.tensor,
    first: tl.tensor,
    n: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    shifts: tl.tensor,
    seed_low: tl.tensor,
    seed_high: tl.tensor,
    f: tl.constexpr,
    units: tl.constexpr,
) -> None:
    """Round a tile of whole blocks along its last axis, and store its packed parts.

    Args:
        v: (lines, columns) float32, as are the positions in the array and what is inside.
        positions: by which values draw.
        inside: which values exist.
        line: of each row of the tile.
        first: where the tile begins in its lines.
        n: values of a line.
        codes: where packed parts go, as are scales and shifts.
        scales: likewise.
        shifts: likewise.
        seed_low: of stochastic rounding, as is seed_high.
        seed_high: its upper 32 bits.
        f: a Spec whose block is ``f.width`` values.
        units: Units.
    """
    of_line: tl.constexpr = v.shape[1] // f.width
    rows: tl.constexpr = v.shape[0] * of_line
    tile: tl.constexpr = [rows, f.width]
    inside = tl.reshape(inside, tile)
    none = tl.zeros([rows], tl.int32)
    drawn = tl.zeros(tile, tl.uint32)
    if f.rounding == "stochastic":
        drawn = draws(tl.reshape(positions, tile), seed_low, seed_high, f.random_bits)
    found, _, scale, shift, _ = round_tile(
        tl.reshape(v, tile),
        drawn,
        none,
        none,
        None,
        None,
        None,
        None,
        f,
    )
    spread = tl.broadcast_to(line[:, None], [v.shape[0], of_line])
    line = tl.reshape(spread, [rows])
    group = tl.reshape(
        tl.broadcast_to((first // f.width + tl.arange(0, of_line))[None, :], [v.shape[0], of_line]), [rows]
    )
    exists = tl.max(inside.to(tl.int32), axis=1) > 0
    store_codes(codes, tl.where(inside, found, 0), inside, line, group * f.width, n, f.grid.bits, units.codes)
    groups = (n + f.width - 1) // f.width
    store_codes(scales, scale[:, None], exists[:, None], line, group, groups, f.scale.bits, units.scales)
    if f.per_shift > 0:
        per_group: tl.constexpr = f.width // f.per_shift
        count = (n + f.per_shift - 1) // f.per_shift
        there = exists[:, None] & ((group * per_group)[:, None] + tl.arange(0, per_group)[None, :] < count)
        shift = tl.where(there, shift, 0)
        store_codes(shifts, shift, there, line, group * per_group, count, f.shift_bits, units.shifts)


@triton.jit(do_not_specialize=["seed_low", "seed_high"])
def both_axes_kernel(
    x: tl.tensor,
    row_codes: tl.tensor,
    row_scales: tl.tensor,
    row_shifts: tl.tensor,
    column_codes: tl.tensor,
    column_scales: tl.tensor,
    column_shifts: tl.tensor,
    seed_low: tl.tensor,
    seed_high: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    step_m: tl.tensor,
    step_n: tl.tensor,
    f: tl.constexpr,
    g: tl.constexpr,
    of_rows: tl.constexpr,
    of_columns: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Round a tile of x along its rows to f and along its columns to g."""
    top, left = tl.program_id(0).to(tl.int64) * tile, tl.program_id(1).to(tl.int64) * tile
    row, column = top + tl.arange(0, tile), left + tl.arange(0, tile)
    inside = (row < m)[:, None] & (column < n)[None, :]
    v = read(
        x, None, row[:, None] * step_m + column[None, :] * step_n, column, inside, f.nonfinite == "saturate"
    )
    place = row[:, None] * n + column[None, :]
    _store_rounded(
        v, place, inside, row, left, n, row_codes, row_scales, row_shifts, seed_low, seed_high, f, of_rows
    )
    _store_rounded(
        tl.trans(v),
        tl.trans(place),
        tl.trans(inside),
        column,
        top,
        m,
        column_codes,
        column_scales,
        column_shifts,
        seed_low,
        seed_high,
        g,
        of_columns,
    )


def quantizes_both(rows: tuple[Format, Options], columns: tuple[Format, Options]) -> bool:
    """Return whether :func:`quantize_both` rounds to these formats with these options."""
    found = [spec(*rows), spec(*columns)]
    nonfinite = rows[1].nonfinite == columns[1].nonfinite
    return nonfinite and rows[1].seed == columns[1].seed and all(f is not None and _fits(f) for f in found)


def _fits(f: Spec) -> bool:
    whole = f.per_scale == f.width and f.width <= _TILE and f.grid is not None
    packs = all((*_units(f, _TILE)[:2], f.per_shift == 0 or _units(f, _TILE).shifts)) if whole else False
    return whole and packs and f.scaling in ("power", "real") and not f.shared


def _units(f: Spec, n: int) -> Units:
    lines = Lines(1, 1, n, 0, 0, 1)
    return units_of(f, lines, work_of(f, lines))


def quantize_both(
    x: torch.Tensor, rows: tuple[Format, Options], columns: tuple[Format, Options]
) -> tuple[Parts, Parts]:
    """Return the packed parts of a matrix with blocks along its rows, and with blocks along its columns.

    They are those of :func:`fewbits.kernels.triton.quantize.quantize.quantize` along the axes 1 and 0.

    Args:
        x: (m, n), float32, bfloat16 or float16, any strides, not empty.
        rows: a format and options that :func:`quantizes_both` accepts.
        columns: likewise.
    """
    m, n = x.shape
    f, g = spec(*rows), spec(*columns)
    assert f is not None
    assert g is not None
    of_rows, of_columns = empty(rows[0], (m, n), 1, x.device), empty(columns[0], (m, n), 0, x.device)
    both_axes_kernel[(triton.cdiv(m, _TILE), triton.cdiv(n, _TILE))](
        x,
        *of_rows[:3],
        *of_columns[:3],
        *seeds(rows[1].seed),
        m,
        n,
        *x.stride(),
        f=f,
        g=g,
        of_rows=_units(f, _TILE),
        of_columns=_units(g, _TILE),
        tile=_TILE,
        enable_fp_fusion=False,
    )
    return of_rows, of_columns
