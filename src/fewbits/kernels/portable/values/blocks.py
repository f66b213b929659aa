"""Tensors cut into blocks along an axis, without moving the axis.

A tensor becomes five axes: what lies before the block axis, the blocks, the sub-blocks of a block, the
values of a sub-block, and what lies behind the axis. So what blocks or sub-blocks share has the same axes,
each of one item, and broadcasts. Zeros fill the last block; they change no maximum.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fewbits.formats import Format
from fewbits.formats.format import Size

Tensor = torch.Tensor

BLOCK, SUB_BLOCK = (2, 3), (3,)  # axes of the values that share a scale, or a shift
CHANNEL, EVERYTHING = (1, 2, 3), (0, 1, 2, 3, 4)


class Cut(NamedTuple):
    """How a tensor of a shape is cut."""

    sides: tuple[Any, Any, Any]  # items before the block axis, along it and behind it
    flat: bool  # whether all values are one line, as no axis tells them apart
    size: Any  # values of a block
    sub: Any  # values of a sub-block

    @property
    def _sides(self) -> tuple[Any, Any, Any]:
        return (1, prod(self.sides), 1) if self.flat else self.sides

    def blocks(self, x: Tensor) -> Tensor:
        """Return ``x`` as (before, blocks, sub-blocks, values, behind)."""
        before, n, behind = self._sides
        lines, spare = x.reshape(before, n, behind), -n % self.size
        if not statically_known_true(spare == 0):
            lines = torch.nn.functional.pad(lines, (0, 0, 0, spare))
        return lines.reshape(before, -(-n // self.size), self.size // self.sub, self.sub, behind)

    def counts(self, device: torch.device) -> Tensor:
        """Return how many values each block has, without zeros that fill it, (1, blocks, 1, 1, 1) float64."""
        n = self._sides[1]
        starts = torch.arange(0, n, self.size, dtype=torch.float64, device=device)
        counts: Tensor = (n - starts).clamp(max=self.size).reshape(1, -1, 1, 1, 1)
        return counts

    def values(self, blocks: Tensor) -> Tensor:
        """Return the values of blocks as (before, values, behind)."""
        before, n, behind = self._sides
        lines = blocks.reshape(before, -(-n // self.size) * self.size, behind)
        return (lines if statically_known_true(-n % self.size == 0) else _first(lines, n)).reshape(self.sides)

    def shared(self, part: Tensor, size: Size) -> Tensor:
        """Return what each block or sub-block has as (before, items, behind)."""
        before, n, behind = (1, 1, 1) if size == "tensor" else self.sides
        count = 1 if isinstance(size, str) else -(-n // size)
        return _first(part.reshape(before, -1, behind), count)

    def of_values(self, lines: Tensor) -> Tensor:
        """Return (before, values, behind) as blocks."""
        return self.blocks(lines)

    def of_shared(self, part: Tensor, size: Size) -> Tensor:
        """Return (before, items, behind) as what the blocks, or sub-blocks of ``size``, share."""
        before, items, behind = part.shape
        if isinstance(size, str) or size == self.size:
            return part.reshape(before, items, 1, 1, behind)
        per_block = self.size // self.sub
        whole = torch.nn.functional.pad(part, (0, 0, 0, -items % per_block))
        return whole.reshape(before, -1, per_block, 1, behind)


def _first(x: Tensor, n: Any) -> Tensor:
    """Return the first ``n`` items along the middle axis."""
    if statically_known_true(x.shape[1] == n):
        return x
    if not torch.compiler.is_compiling():
        return x[:, :n]
    # Inductor 2.13 splits a loop over n values by the size of their blocks, and never comes to those of
    # the last part of one. What as_strided looks at lies in memory: loops before it are over whole blocks.
    before, items, behind = x.shape
    return x.contiguous().as_strided((before, n, behind), (items * behind, behind, 1))


def cut(format: Format, shape: tuple[Any, ...], axis: int) -> Cut:
    """Return how a tensor of ``shape``, with at least one value, is cut for a format."""
    scales, shifts = format.groups.scales, format.groups.shifts
    front = axis % len(shape) if shape else 0
    sides = prod(shape[:front]), (shape[front] if shape else 1), prod(shape[front + 1 :])
    flat = scales is None or scales.size == "tensor"
    whole = prod(sides) if flat else sides[1]
    size = whole if scales is None or isinstance(scales.size, str) else scales.size
    return Cut(sides, flat, size, size if shifts is None else shifts.size)
