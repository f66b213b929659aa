"""Where the blocks of a tensor lie: the lines along its axis, each cut into groups that share a scale.

A line is a place before the axis and a place behind it. A program takes some groups, or equal parts of long
ones, side by side: neighbours along the line where the axis is the last, else the same group of neighbouring
lines, so that neighbouring lanes read neighbouring addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from fewbits.kernels.triton.values.spec import Spec

_IN_PROGRAM = 2048  # values: 16 for each of 128 threads; on an H100 half or twice as many took as long


class Lines(NamedTuple):
    """The lines of a tensor along one axis, in steps of values."""

    before: int  # places before the axis
    behind: int  # places behind it
    n: int  # values of a line
    step_before: int
    step_behind: int
    step: int  # from one value of a line to the next

    @property
    def total(self) -> int:
        """How many lines there are."""
        return self.before * self.behind


class Work(NamedTuple):
    """How lines are cut among programs."""

    groups: int  # of a line, each with a scale of its own
    size: int  # values of a group, the last may have fewer
    parts: int  # of a group, each what a program holds side by side
    rows: int  # groups or parts in a program
    programs: int


def lines_of(x: torch.Tensor, axis: int) -> tuple[torch.Tensor, Lines]:
    """Return ``x``, or a copy in C order where its strides are not those of two axes, and its lines."""
    if not x.ndim:
        x = x.reshape(1)
    axis %= x.ndim
    before = _merged(x.shape[:axis], x.stride()[:axis])
    behind = _merged(x.shape[axis + 1 :], x.stride()[axis + 1 :])
    if before is None or behind is None:
        return lines_of(x.contiguous(), axis)
    return x, Lines(
        prod(x.shape[:axis]), prod(x.shape[axis + 1 :]), x.shape[axis], before, behind, x.stride(axis)
    )


def _is_dense(lines: Lines) -> bool:
    """Return whether values lie one behind the other in memory, along lines and from one to the next."""
    return lines.behind == 1 and lines.step == 1 and (lines.before == 1 or lines.step_before == lines.n)


def in_one_line(lines: Lines, spec: Spec) -> Lines:
    """Return lines that lie one behind the other as a single one, where neither blocks nor bytes change.

    A program then divides by no number of groups.
    """
    grid = spec.grid or spec.table
    assert grid is not None
    if not _is_dense(lines) or spec.shared not in ("", "tensor"):
        return lines
    counts = [(lines.n, grid.bits)]
    if spec.per_scale:
        counts.append((lines.n // spec.per_scale, spec.scale.bits))
    if spec.per_shift:
        counts.append((lines.n // spec.per_shift, spec.shift_bits))
    cut = spec.per_scale and lines.n % spec.per_scale
    if cut or any(count * bits % 8 for count, bits in counts):
        return lines
    return Lines(1, 1, lines.before * lines.n, 0, 0, 1)


def fills(lines: Lines, work: Work, width: int) -> int:
    """Return 1 where each row of a program is ``width`` values one behind the other and rows too, else 0.

    2 where the values are read in that order as well: ``i`` of the tensor is ``i`` of its memory.
    """
    if lines.behind > 1 or work.size % width or lines.n % work.size:
        return 0
    return 2 if _is_dense(lines) else 1


def is_wide(lines: Lines) -> bool:
    """Return whether places of values, or of their bits, need more than 31 bits."""
    reach = (
        lines.before * abs(lines.step_before)
        + lines.behind * abs(lines.step_behind)
        + lines.n * abs(lines.step)
    )
    return max(reach, 32 * lines.total * lines.n) >= 2**31


def walk(lines: Lines, work: Work) -> dict[str, int]:
    """Return the arguments, by name, of a kernel whose programs ask :func:`place_of` where they are."""
    return {
        "lines": lines.total,
        "behind": lines.behind,
        "n": lines.n,
        "groups": work.groups,
        "size": work.size,
        "parts": work.parts,
        "rows": work.rows,
        "along": 0 if lines.behind > 1 else 1 if lines.total > 1 else 2,
        "wide": is_wide(lines),
    }


def steps(lines: Lines) -> dict[str, int]:
    """Return the arguments, by name, of a kernel that reads values where they lie."""
    return {"step_before": lines.step_before, "step_behind": lines.step_behind, "step": lines.step}


def _merged(shape: Sequence[int], steps: Sequence[int]) -> int | None:
    """Return the step of axes that are walked as one; None where they cannot be."""
    step, length = 0, 1
    for size, own in reversed(list(zip(shape, steps, strict=True))):
        if size == 1:
            continue
        if length > 1 and own != step * length:
            return None
        step = own if length == 1 else step
        length *= size
    return step


def work_of(spec: Spec, lines: Lines) -> Work:
    """Return how lines are cut for the kernels of ``spec``."""
    size = spec.per_scale if spec.per_scale else lines.n if spec.scaling != "none" else spec.width
    groups = -(-lines.n // size)
    parts = -(-min(size, lines.n) // spec.width)
    rows = max(1, _IN_PROGRAM // spec.width)
    rows = min(rows, triton.next_power_of_2(lines.total * groups * parts))  # a small tensor, a small program
    return Work(groups, size, parts, rows, -(-lines.total * groups * parts // rows))


@triton.jit
def row_of(rows: tl.constexpr, wide: tl.constexpr) -> Any:
    """Return the rows of a program, counted over all programs."""
    first = tl.program_id(0)
    if wide:
        first = first.to(tl.int64)
    return first * rows + tl.arange(0, rows)


@triton.jit
def place_of(
    lines: tl.tensor,
    behind: tl.tensor,
    n: tl.tensor,
    groups: tl.tensor,
    size: tl.tensor,
    parts: tl.tensor,
    rows: tl.constexpr,
    width: tl.constexpr,
    along: tl.constexpr,
    wide: tl.constexpr,
) -> Any:
    """Return what a program works on.

    Args:
        lines: how many there are.
        behind: as in Lines.
        n: values of a line.
        groups: as in Work, as are size and parts.
        size: values of a group.
        parts: of a group.
        rows: groups, or parts of groups, in a program.
        width: values of each, a power of two.
        along: 1 where neighbouring rows are neighbours along the line, 2 where it is the only one; else 0.
        wide: whether places need 64 bits.

    Returns:
        Of each row its line, the places of that before and behind the axis, the group, the part, and whether
        it exists; then of each value, (rows, width), its place in the line and whether it exists.
    """
    row = row_of(rows, wide)
    count = groups * parts
    if along == 2:
        line, piece = row * 0, row
    elif along == 1:
        line, piece = row // count, row % count
    else:
        line, piece = row % lines, row // lines
    group, part = piece // parts, piece % parts
    local = part[:, None] * width + tl.arange(0, width)[None, :]
    i = group[:, None] * size + local
    exists = (line < lines) & (group < groups)
    return (
        line,
        line // behind,
        line % behind,
        group,
        part,
        exists,
        i,
        exists[:, None] & (local < size) & (i < n),
    )
