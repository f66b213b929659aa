"""Sparse matrices by rows, compressed: slices of 16 rows side by side, 16-bit columns, 16-bit values.

The slices are those of Kreutzer et al., A unified sparse matrix data format for efficient general sparse
matrix-vector multiplication on modern processors with wide SIMD units, SIAM J. Sci. Comput. 36, 2014, with
rows of like length brought together among each thousand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.layout import room

SLICE = 16  # rows side by side
SORTED = 1024  # rows among which those of like length are brought together
WINDOW = 1 << 16  # columns that 16 bits tell apart

Array = NDArray[Any]


@dataclass(frozen=True)
class SparseRows:
    """Compressed rows.

    Attributes:
        rows: of the matrix.
        first: (slices + 1) int64, the segments of each slice. In a segment columns count from a common base.
        start: (segments + 1) int64; entry k of a segment of lane l is at 16 (start + k) + l.
        base: (segments) int64.
        storage: of the values: ``f32``, ``f16`` or ``i16``.
        values: (entries, 16); zero where a row has ended.
        columns: (entries, 16) uint16 or int32.
        unit: (16 slices) float32; every value of a row is worth that many times.
        place: (16 slices) int32, the row of a lane; -1 for none.
    """

    rows: int
    first: NDArray[np.int64]
    start: NDArray[np.int64]
    base: NDArray[np.int64]
    storage: str
    values: Array
    columns: Array
    unit: NDArray[np.float32]
    place: NDArray[np.int32]

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads of it."""
        parts = (self.first, self.start, self.base, self.values, self.columns, self.unit, self.place)
        return sum(part.nbytes for part in parts)


def compress(
    pointers: Array, columns: Array, values: Array, unit: Array, storage: str, width: int
) -> SparseRows:
    """Return compressed rows of a matrix in the usual form.

    Args:
        pointers: (rows + 1), where each row begins.
        columns: (entries), rising in each row.
        values: (entries), of the storage's type.
        unit: (rows) float32, what a value of the row is worth.
        storage: ``f32``, ``f16`` or ``i16``.
        width: columns of the matrix.
    """
    narrow, wide = _layout(pointers, columns, WINDOW), None
    if width > WINDOW:
        wide = _layout(pointers, columns, width)
        # Rows that jump about fill windows badly: then whole columns are shorter.
        if _bytes(wide, values.itemsize + 4) < _bytes(narrow, values.itemsize + 2):
            narrow = wide
    order, first, start, base, at = narrow
    held, where = (room((int(start[-1]), SLICE), t) for t in (values.dtype, _type(narrow is wide)))
    held.fill(0)
    where[...] = 0
    held.reshape(-1)[at] = values
    slices = len(first) - 1
    place = np.full(SLICE * slices, -1, np.int32)
    place[: len(order)] = order
    units = np.zeros(SLICE * slices, np.float32)
    units[: len(order)] = unit[order]
    segment = np.searchsorted(start, at // SLICE, side="right") - 1
    where.reshape(-1)[at] = columns - base[segment]
    return SparseRows(len(order), first, start, base, storage, held, where, units, place)


def _type(wide: bool) -> Any:
    return np.int32 if wide else np.uint16


def _bytes(layout: tuple[Array, ...], each: int) -> int:
    return int(layout[2][-1]) * SLICE * each


def _layout(pointers: Array, columns: Array, window: int) -> tuple[Array, Array, Array, Array, Array]:
    """Return the order of the rows, first, start and base of the segments, and where each entry goes."""
    lengths = np.diff(pointers).astype(np.int64)
    rows = len(lengths)
    order = np.lexsort((-lengths, np.arange(rows) // SORTED))
    lane_of = np.empty(rows, np.int64)
    lane_of[order] = np.arange(rows)
    row = np.repeat(np.arange(rows), lengths)
    lane, part = lane_of[row], columns.astype(np.int64) // window
    # Entries of a row come in the order of their columns: those of one window follow each other.
    begins = np.ones(len(row), bool)
    begins[1:] = (row[1:] != row[:-1]) | (part[1:] != part[:-1])
    at = np.arange(len(row))
    within = at - np.maximum.accumulate(np.where(begins, at, 0)) if len(row) else at
    slices, windows = -(-rows // SLICE), int(part.max(initial=0)) + 1
    key = lane // SLICE * windows + part
    keys, segment = np.unique(key, return_inverse=True)
    longest = np.zeros(len(keys), np.int64)
    np.maximum.at(longest, segment, within + 1)
    start = np.concatenate([[0], np.cumsum(longest)]).astype(np.int64)
    first = np.searchsorted(keys // windows, np.arange(slices + 1)).astype(np.int64)
    return order, first, start, keys % windows * window, SLICE * (start[segment] + within) + lane % SLICE
