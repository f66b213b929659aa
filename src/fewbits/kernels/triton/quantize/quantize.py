"""Quantize and fake-quantize: one pass over memory, and one before where a line or the tensor shares a scale.

Equal to :mod:`fewbits.kernels.reference.quantize.quantize`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from fewbits.formats import Format
from fewbits.kernels.bits.layout import layout
from fewbits.kernels.bits.options import Options
from fewbits.kernels.triton.quantize.rounding import round_tile
from fewbits.kernels.triton.values.bits import to_dtype
from fewbits.kernels.triton.values.geometry import (
    Lines,
    Work,
    fills,
    in_one_line,
    lines_of,
    place_of,
    row_of,
    steps,
    walk,
    work_of,
)
from fewbits.kernels.triton.values.magnitudes import measured, read
from fewbits.kernels.triton.values.packing import pack, store_codes, store_rows, unit_of
from fewbits.kernels.triton.values.spec import Spec, spec
from fewbits.kernels.triton.values.stochastic_draws import draws, draws_in_order
from fewbits.kernels.triton.values.tables import tables

Parts = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


class Units(NamedTuple):
    """By how many codes, scales and shifts programs pack; 0 where that is left to a pass of its own."""

    codes: int
    scales: int
    shifts: int


@triton.jit
def _drawn(
    place: tl.tensor,
    row: tl.tensor,
    seed_low: tl.tensor,
    seed_high: tl.tensor,
    f: tl.constexpr,
    full: tl.constexpr,
) -> Any:
    """Return the draws of a tile, where values round by them."""
    rows: tl.constexpr = place.shape[0]
    width: tl.constexpr = place.shape[1]
    if f.rounding != "stochastic":
        drawn = tl.zeros([rows, width], tl.uint32)
    elif full > 0 and f.random_bits == 16 and rows * width % 128 == 0:
        drawn = draws_in_order(tl.min(row, axis=0) * width, seed_low, seed_high, rows, width)
    else:
        drawn = draws(place, seed_low, seed_high, f.random_bits)
    return drawn


@triton.jit
def _store_codes(
    codes: tl.tensor,
    found: tl.tensor,
    inside: tl.tensor,
    exists: tl.tensor,
    row: tl.tensor,
    line: tl.tensor,
    first: tl.tensor,
    n: tl.tensor,
    f: tl.constexpr,
    units: tl.constexpr,
    full: tl.constexpr,
) -> None:
    bits: tl.constexpr = f.table.bits if f.grid is None else f.grid.bits
    if full > 0 and units.codes > 0:
        store_rows(codes, found, exists, row, bits, units.codes)
    else:
        store_codes(codes, tl.where(inside, found, 0), inside, line, first, n, bits, units.codes)


@triton.jit
def _store_scales(
    scales: tl.tensor,
    shifts: tl.tensor,
    scale: tl.tensor,
    shift: tl.tensor,
    exists: tl.tensor,
    begins: tl.tensor,
    line: tl.tensor,
    group: tl.tensor,
    groups: tl.tensor,
    n: tl.tensor,
    f: tl.constexpr,
    units: tl.constexpr,
) -> None:
    if f.scaling != "none":
        if f.shared == "tensor" and f.per_scale == 0:
            begins = begins & (line == 0) & (group == 0)
        store_codes(scales, scale[:, None], begins[:, None], line, group, groups, f.scale.bits, units.scales)
    if f.per_shift > 0:
        per_group: tl.constexpr = f.width // f.per_shift
        of_line = (n + f.per_shift - 1) // f.per_shift
        item = (group * per_group)[:, None] + tl.arange(0, per_group)[None, :]
        there = exists[:, None] & (item < of_line)
        shift = tl.where(there, shift, 0)
        store_codes(shifts, shift, there, line, group * per_group, of_line, f.shift_bits, units.shifts)


@triton.jit(do_not_specialize=["seed_low", "seed_high"])
def quantize_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    y: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    shifts: tl.tensor,
    outer: tl.tensor,
    largest: tl.tensor,
    bad: tl.tensor,
    keys: tl.tensor,
    table_codes: tl.tensor,
    rising: tl.tensor,
    by_code: tl.tensor,
    seed_low: tl.tensor,
    seed_high: tl.tensor,
    lines: tl.tensor,
    behind: tl.tensor,
    n: tl.tensor,
    step_before: tl.tensor,
    step_behind: tl.tensor,
    step: tl.tensor,
    groups: tl.tensor,
    size: tl.tensor,
    parts: tl.tensor,
    f: tl.constexpr,
    units: tl.constexpr,
    rows: tl.constexpr,
    along: tl.constexpr,
    wide: tl.constexpr,
    full: tl.constexpr,
) -> None:
    """Round x, plus the residual unless that is None: values to y, or packed parts where y is None.

    A residual becomes what rounding leaves over: kernels/reference/feedback/feedback.py.
    """
    line, before, after, group, part, exists, i, inside = place_of(
        lines, behind, n, groups, size, parts, rows, f.width, along, wide
    )
    width: tl.constexpr = f.width
    at = (before * step_before + after * step_behind)[:, None] + i * step
    place = (before * n * behind + after)[:, None] + i * behind  # in C order
    row = row_of(rows, wide)
    if full > 0:
        place = row[:, None] * width + tl.arange(0, width)[None, :]
        inside = tl.broadcast_to(exists[:, None], [rows, width])
    if full > 1:
        at = place
    v = read(x, residual, at, place, inside, f.nonfinite == "saturate")
    of_row, bad_row = tl.zeros([rows], tl.int32), tl.zeros([rows], tl.int32)
    if f.shared != "":
        if f.shared == "tensor":
            shared = tl.zeros_like(line)
        elif f.shared == "channel":
            shared = line
        else:
            shared = line * groups + group
        of_row = tl.load(largest + shared, mask=exists, other=0)
        bad_row = tl.load(bad + shared, mask=exists, other=0)
    drawn = _drawn(place, row, seed_low, seed_high, f, full)
    found, value, scale, shift, above = round_tile(
        v, drawn, of_row, bad_row, keys, table_codes, rising, by_code, f
    )
    if y is not None:
        tl.store(y + place, to_dtype(value, y.dtype.element_ty), mask=inside)
    else:
        first = group * size + part * width
        _store_codes(codes, found, inside, exists, row, line, first, n, f, units, full)
        begins = exists & (part == 0)
        _store_scales(scales, shifts, scale, shift, exists, begins, line, group, groups, n, f, units)
        if f.scaling == "outer":
            if f.shared == "tensor":
                begins = begins & (line == 0)
            tl.store(outer + line, above, mask=begins & (group == 0))
        if residual is not None:
            total = read(x, residual, at, place, inside, False)
            left = total - value
            left = tl.where((left - left) == 0.0, left, 0.0)
            tl.store(residual + place, left, mask=inside)


def fake_quantize(
    x: torch.Tensor, format: Format, axis: int, chosen: Options, amax: float | None = None
) -> torch.Tensor:
    """Return the values of :func:`quantize`, in x's dtype and shape, in C order.

    Args:
        x: float32, bfloat16 or float16 on one device, not empty. Strides of two axes are read as they are;
            others are copied to C order first.
        format: one that :func:`fewbits.kernels.triton.values.spec.supports` accepts with these options.
        axis: along which blocks lie.
        chosen: from :func:`fewbits.kernels.bits.options.options`. With ``nonfinite="raise"`` the caller looks
            for NaN and infinity.
        amax: the largest magnitude of the whole tensor where x is a part of it.
    """
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, None, y, None, format, axis, chosen, amax)
    return y


def quantize(x: torch.Tensor, format: Format, axis: int, chosen: Options, amax: float | None = None) -> Parts:
    """Return packed codes, scales, shifts and outer scales; arguments as for :func:`fake_quantize`."""
    parts = empty(format, tuple(x.shape), axis, x.device)
    _launch(x, None, None, parts, format, axis, chosen, amax)
    return parts


def quantize_with_feedback(
    x: torch.Tensor, residual: torch.Tensor, format: Format, chosen: Options, parts: Parts
) -> None:
    """Write the packed parts of ``x + residual`` into ``parts``, what rounding leaves over into ``residual``.

    Both are flat, the residual float32 in C order.
    """
    _launch(x, residual, None, parts, format, 0, chosen, None)


def empty(format: Format, shape: tuple[int, ...], axis: int, device: torch.device) -> Parts:
    """Return packed parts that nothing was written to yet."""
    dtypes = (torch.uint8, torch.uint8, torch.uint8, torch.float32)
    codes, *shared = (
        None if s is None else torch.empty(s, dtype=d, device=device)
        for s, d in zip(layout(format, shape, axis % max(len(shape), 1)), dtypes, strict=True)
    )
    assert codes is not None
    return codes, shared[0], shared[1], shared[2]


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    y: torch.Tensor | None,
    parts: Parts | None,
    format: Format,
    axis: int,
    chosen: Options,
    amax: float | None,
) -> None:
    f = spec(format, chosen)
    assert f is not None
    x, lines = lines_of(x, axis)
    lines = in_one_line(lines, f)
    work = work_of(f, lines)
    largest, bad = _measure(x, residual, f, lines, work, amax)
    units = units_of(f, lines, work)
    targets, rest = _targets(f, parts, units, lines, work)
    quantize_kernel[(work.programs,)](
        x,
        residual,
        y,
        *targets,
        None if parts is None else parts[3],
        largest,
        bad,
        *tables(format, chosen, x.device),
        *seeds(chosen.seed),
        **walk(lines, work),
        **steps(lines),
        f=f,
        units=units,
        full=fills(lines, work, f.width),
        enable_fp_fusion=False,
    )
    for codes, out, count, bits in rest:
        pack(codes, out, count, bits)


def _measure(
    x: torch.Tensor, residual: torch.Tensor | None, f: Spec, lines: Lines, work: Work, amax: float | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if not f.shared:
        return None, None
    largest, bad = measured(
        x, lines, work, f.shared, f.width, saturate=f.nonfinite == "saturate", residual=residual
    )
    if amax is not None and f.shared == "tensor":
        largest.view(torch.float32).fill_(amax)
    return largest, bad


def units_of(f: Spec, lines: Lines, work: Work) -> Units:
    """Return by how many codes, scales and shifts programs pack."""
    grid = f.grid or f.table
    assert grid is not None
    per_group = work.size // f.per_shift if f.per_shift else 1
    of_line = -(-lines.n // f.per_shift) if f.per_shift else 1
    return Units(
        unit_of(grid.bits, work.size, f.width, lines.n),
        unit_of(f.scale.bits, 1, 1, 0) if f.scale.bits % 8 == 0 else 0,
        unit_of(f.shift_bits, per_group, per_group, of_line) if f.per_shift else 0,
    )


def _targets(
    f: Spec, parts: Parts | None, units: Units, lines: Lines, work: Work
) -> tuple[list[torch.Tensor | None], list[tuple[torch.Tensor, torch.Tensor, int, int]]]:
    """Return where the kernel stores codes, scales and shifts, and what is left to pack."""
    if parts is None:
        return [None] * 3, []
    grid = f.grid or f.table
    assert grid is not None
    shared_by_all = f.shared == "tensor" and not f.per_scale
    counts = (
        (lines.total, lines.n, grid.bits),
        (1 if shared_by_all else lines.total, work.groups, f.scale.bits),
        (lines.total, -(-lines.n // f.per_shift) if f.per_shift else 0, f.shift_bits),
    )
    targets: list[torch.Tensor | None] = []
    rest = []
    for part, unit, (of_lines, count, bits) in zip(parts, units, counts, strict=False):
        if part is None or unit:
            targets.append(part)
            continue
        scratch = torch.empty(of_lines, count, dtype=torch.int32, device=part.device)
        targets.append(scratch)
        rest.append((scratch, part, count, bits))
    return targets, rest


def seeds(seed: int) -> tuple[int, int]:
    """Return both halves of a seed as int32."""
    halves = (seed & 0xFFFFFFFF, seed >> 32)
    low, high = (half - (1 << 32) if half >> 31 else half for half in halves)
    return low, high
