"""Sparse matrices by rows, compressed: slices of 16 rows side by side, 16-bit columns, 16-bit values.

The slices are those of Kreutzer et al., A unified sparse matrix data format for efficient general sparse
matrix-vector multiplication on modern processors with wide SIMD units, SIAM J. Sci. Comput. 36, 2014. Rows
that share diagonals keep their order, and consecutive columns need not be read. Other rows are sorted by
length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.bits.memory import empty_aligned

SLICE = 16  # rows side by side
SORTED = 1024  # number of rows within which rows are sorted by length
WINDOW = 1 << 16  # columns that 16 bits can address
MOST_ZEROS = 1.3  # values stored for each that there is, where rows lie side by side along diagonals

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
        runs: (entries) int32: the column of lane 0 where those of the lanes follow each other, as in a band;
            they are then not read. Else -1.
        unit: (16 slices) float32; every value of a row is multiplied by it.
        place: (16 slices) int32, the row of a lane; -1 for none.
    """

    rows: int
    first: NDArray[np.int64]
    start: NDArray[np.int64]
    base: NDArray[np.int64]
    storage: str
    values: Array
    columns: Array
    runs: NDArray[np.int32]
    unit: NDArray[np.float32]
    place: NDArray[np.int32]

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads of it."""
        parts = (self.first, self.start, self.base, self.values, self.runs, self.unit, self.place)
        jumps = int((self.runs < 0).sum())
        return sum(part.nbytes for part in parts) + jumps * SLICE * self.columns.itemsize


def compress(
    pointers: Array, columns: Array, values: Array, unit: Array, storage: str, width: int
) -> SparseRows:
    """Return compressed rows of a matrix in the usual form.

    Args:
        pointers: (rows + 1), where each row begins.
        columns: (entries), rising in each row.
        values: (entries), of the storage's type.
        unit: (rows) float32, by which the values of a row are multiplied.
        storage: ``f32``, ``f16`` or ``i16``.
        width: columns of the matrix.
    """
    wide = False
    chosen = _by_diagonal(pointers, columns)
    # Side by side along diagonals columns need not be read; but rows unlike each other have few in common.
    if _entries(chosen) > MOST_ZEROS * len(columns) / SLICE:
        chosen = _by_length(pointers, columns, WINDOW)
        if width > WINDOW:
            # Rows with scattered columns fill windows badly; 32-bit columns are then shorter.
            unsplit = _by_length(pointers, columns, width)
            wide = _entries(unsplit) * (values.itemsize + 4) < _entries(chosen) * (values.itemsize + 2)
            chosen = unsplit if wide else chosen
    order, first, start, base, at = chosen
    held, where = (empty_aligned((int(start[-1]), SLICE), t) for t in (values.dtype, _type(wide)))
    held.fill(0)
    where[...] = 0
    held.reshape(-1)[at] = values
    slices = len(first) - 1
    place = np.full(SLICE * slices, -1, np.int32)
    place[: len(order)] = order
    units = np.zeros(SLICE * slices, np.float32)
    units[: len(order)] = unit[order]
    segment = np.searchsorted(start, at // SLICE, side="right") - 1
    offsets = columns - base[segment]
    where.reshape(-1)[at] = offsets
    runs = _runs(offsets, at, int(start[-1]))
    # A row of x is read whole: it must not end before.
    runs[np.repeat(base, np.diff(start)) + runs + SLICE > width] = -1
    return SparseRows(len(order), first, start, base, storage, held, where, runs, units, place)


def _runs(offsets: Array, at: Array, entries: int) -> NDArray[np.int32]:
    """Return where lane 0 lies if the lanes of an entry that hold a value follow each other, else -1."""
    starts = offsets - at % SLICE
    low, high = np.full(entries, np.iinfo(np.int64).max), np.full(entries, -1, np.int64)
    np.minimum.at(low, at // SLICE, starts)
    np.maximum.at(high, at // SLICE, starts)
    return np.where(low == high, low, -1).astype(np.int32)


def _type(wide: bool) -> Any:
    return np.int32 if wide else np.uint16


def _entries(layout: tuple[Array, ...]) -> int:
    return int(layout[2][-1])


def _by_diagonal(pointers: Array, columns: Array) -> tuple[Array, Array, Array, Array, Array]:
    """Lay rows out as they come, entries of one diagonal side by side; see :func:`_placed`."""
    rows = len(pointers) - 1
    row = np.repeat(np.arange(rows), np.diff(pointers))
    segments, segment = _segments(row // SLICE, columns, WINDOW)
    span = rows + int(columns.max(initial=0)) + 1
    diagonals, which = np.unique(segment * span + columns - row + rows, return_inverse=True)
    owner = diagonals // span
    within = which - np.searchsorted(owner, np.arange(len(segments[0])))[segment]
    return _placed(np.arange(rows), row, segments, segment, within, WINDOW)


def _by_length(pointers: Array, columns: Array, window: int) -> tuple[Array, Array, Array, Array, Array]:
    """Lay rows of like length side by side, their entries in order; see :func:`_placed`."""
    lengths = np.diff(pointers).astype(np.int64)
    rows = len(lengths)
    order = np.lexsort((-lengths, np.arange(rows) // SORTED))
    lane_of = np.empty(rows, np.int64)
    lane_of[order] = np.arange(rows)
    lane = np.repeat(lane_of, lengths)
    segments, segment = _segments(lane // SLICE, columns, window)
    # Entries of a row come in the order of their columns: those of one window follow each other.
    begins = np.ones(len(lane), bool)
    begins[1:] = (lane[1:] != lane[:-1]) | (segment[1:] != segment[:-1])
    at = np.arange(len(lane))
    within = at - np.maximum.accumulate(np.where(begins, at, 0)) if len(lane) else at
    return _placed(order, lane, segments, segment, within, window)


def _segments(slices: Array, columns: Array, window: int) -> tuple[tuple[Array, Array], Array]:
    """Return the slice and the window of each segment, in order, and the segment of each entry."""
    part = columns.astype(np.int64) // window
    windows = int(part.max(initial=0)) + 1
    keys, segment = np.unique(slices * windows + part, return_inverse=True)
    return (keys // windows, keys % windows), segment


def _placed(
    order: Array, lane: Array, segments: tuple[Array, Array], segment: Array, within: Array, window: int
) -> tuple[Array, Array, Array, Array, Array]:
    """Return the order of the rows, first, start and base of the segments, and where each entry goes.

    Args:
        order: the row of each lane.
        lane: of each entry, counted through all slices.
        segments: see :func:`_segments`.
        segment: of each entry.
        within: which entry of its segment it is.
        window: columns of a segment.
    """
    longest = np.zeros(len(segments[0]), np.int64)
    np.maximum.at(longest, segment, within + 1)
    start = np.concatenate([[0], np.cumsum(longest)]).astype(np.int64)
    first = np.searchsorted(segments[0], np.arange(-(-len(order) // SLICE) + 1)).astype(np.int64)
    return order, first, start, segments[1] * window, SLICE * (start[segment] + within) + lane % SLICE
