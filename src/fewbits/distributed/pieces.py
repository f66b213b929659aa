"""How a tensor is cut into the pieces of which each belongs to one process."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fewbits.formats import Format


def even(n: int, size: int, format: Format | None) -> list[int]:
    """Return the lengths of ``size`` pieces of ``n`` values that cut no block; the last are shorter."""
    unit = 1 if format is None else format.block_size
    length = -(-n // (size * unit)) * unit
    return [min(max(n - rank * length, 0), length) for rank in range(size)]


def within(lengths: Sequence[int], start: int, length: int) -> list[int]:
    """Return how much of each of some parts in a row lies in the piece of ``length`` from ``start`` on."""
    found = []
    for n in lengths:
        found.append(max(min(n, start + length) - max(start, 0), 0))
        start -= n
    return found


def of_rows(shape: tuple[int, ...], size: int) -> list[int]:
    """Return the lengths of pieces of whole rows, as torch.chunk and sharded parameters cut them."""
    return [rows * math.prod(shape[1:]) for rows in even(shape[0], size, None)]
