"""Cuts long arrays of rows into pieces that fit in memory."""

from __future__ import annotations

from collections.abc import Iterator


def pieces(count: int, row: int, *, most: int, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Yield (start, size) of each piece of ``count`` items in rows of ``row``.

    A piece is as many full rows as fit, or part of a row that is longer than a piece.

    Args:
        count: all items; a multiple of ``row``.
        row: items in a row.
        most: most items in a piece; at least ``multiple``.
        multiple: a row longer than a piece is cut at multiples of this many items.

    >>> list(pieces(12, 4, most=9))
    [(0, 8), (8, 4)]
    >>> list(pieces(14, 7, most=5, multiple=2))
    [(0, 4), (4, 3), (7, 4), (11, 3)]
    """
    row = max(row, 1)
    if row <= most:
        step = row * (most // row)
        yield from ((start, min(step, count - start)) for start in range(0, count, step))
        return
    step = max(most // multiple, 1) * multiple
    for first in range(0, count, row):
        for start in range(first, first + row, step):
            yield start, min(step, first + row - start)
