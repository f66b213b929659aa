"""Tables of values that lose least on given vectors: optimal quantizers of what is left beside the scales.

A scalar quantizer of least squared error (Lloyd 1982, Max 1960) is found exactly on a grid of 4096 cells, by
dynamic programming over where one value's cells end and the next one's begin (Bruce 1965), each row of it by
halving (the costs are concave, so the best beginnings rise with the ends).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fewbits.compare.exploring.space import on_steps
from fewbits.compare.exploring.vectors import Singles
from fewbits.errors import FormatError
from fewbits.formats import Block, Element, Lookup

CELLS = 4096

Reals = NDArray[np.float64]
Indices = NDArray[np.int64]
Costs = Callable[[Indices, Indices], Reals]


def fitted_table(
    values: Singles, bits: int, scale: Element, size: int, outer: Element | None = None
) -> Block | None:
    """Return the format of ``2^bits`` values that loses least on these vectors; None if there is none.

    Under a scale that is a real number, the largest magnitude of a block becomes the largest value of the
    table, which is therefore fixed at one; under a power of two it lies from one to two.

    Args:
        values: (vectors, length), finite.
        bits: of a code.
        scale: of the blocks.
        size: of the blocks.
        outer: the scale over the scales, if any.
    """
    normal, weights = _normalized(values, scale, size)
    most = 2.0 if scale.power_of_two else 1.0
    table = optimal_values(normal, weights, 2**bits, most, fixed=None if scale.power_of_two else 1.0)
    written = np.unique([on_steps(v) for v in table])
    try:
        return Block(Lookup(tuple(written.tolist())), scale, size, outer)
    except FormatError:  # all values are one and the same, or none is above zero
        return None


def _normalized(values: Singles, scale: Element, size: int) -> tuple[Reals, Reals]:
    """Return the values over the scales of their blocks, and the squared scales: the weights of errors."""
    lines, length = values.shape
    blocks = np.zeros((lines, -(-length // size) * size))
    blocks[:, :length] = values
    blocks = blocks.reshape(-1, size)
    amax = np.abs(blocks).max(axis=1, keepdims=True)
    scales = np.ldexp(1.0, np.frexp(amax)[1] - 1) if scale.power_of_two else amax
    kept = np.broadcast_to(scales > 0, blocks.shape) & (blocks != 0)  # zeros beyond the end of a line, too
    with np.errstate(invalid="ignore", divide="ignore"):
        return (blocks / scales)[kept], np.broadcast_to(scales**2, blocks.shape)[kept]


def optimal_values(
    values: Reals, weights: Reals, count: int, most: float, *, fixed: float | None = None, cells: int = CELLS
) -> Reals:
    """Return at most ``count`` rising numbers with the least weighted squared error to ``values``.

    Values in one of ``cells`` equal cells from ``-most`` to ``most`` go to the same number; with that the
    result is exact.

    Args:
        values: from ``-most`` to ``most``.
        weights: of the squared errors, of the same shape.
        count: of numbers.
        most: largest magnitude.
        fixed: what the largest number has to be.
        cells: of the grid.
    """
    place = np.clip(((values / most + 1) * (cells / 2)).astype(np.int64), 0, cells - 1)
    sums = [np.bincount(place, weights * values**power, cells) for power in (0, 1, 2)]
    filled = sums[0] > 0
    w, s, q = (np.concatenate([[0.0], np.cumsum(part[filled])]) for part in sums)
    n = len(w) - 1

    def around_mean(first: Indices, end: Indices) -> Reals:
        weight = w[end] - w[first]
        mean = (s[end] - s[first]) / np.where(weight > 0, weight, 1)
        spread: Reals = (q[end] - q[first]) - (s[end] - s[first]) * mean
        return spread

    def around_fixed(first: Indices, end: Indices, to: float) -> Reals:
        distance: Reals = (q[end] - q[first]) - 2 * to * (s[end] - s[first]) + to**2 * (w[end] - w[first])
        return distance

    free = count if fixed is None else count - 1
    errors, ends = around_mean(np.zeros(n + 1, np.int64), np.arange(n + 1)), []
    for _ in range(min(free, n) - 1):
        errors, begins = _row(errors, around_mean)
        ends.append(begins)
    last = n
    if fixed is not None:  # the cells from `last` on go to the fixed number
        last = int(np.argmin(errors + around_fixed(np.arange(n + 1), np.full(n + 1, n), fixed)))
    cuts = [last]
    for begins in reversed(ends):
        cuts.append(int(begins[cuts[-1]]))
    borders = np.unique([0, *cuts])
    found = [(s[b] - s[a]) / (w[b] - w[a]) for a, b in pairwise(borders)]
    return np.array(found if fixed is None else [*found, fixed])


def _row(before: Reals, costs: Costs) -> tuple[Reals, Indices]:
    """Return for each end the least of ``before[first] + costs(first, end)``, and the first it is found at.

    The first ones rise with the ends: those of the ends halfway lie between those of their neighbours.
    """
    n = len(before) - 1
    best, at = np.full(n + 1, np.inf), np.zeros(n + 1, np.int64)
    best[0] = before[0]
    step = 1 << max(n, 1).bit_length()
    while step > 1:
        half = step // 2
        ends = np.arange(half, n + 1, step)
        above = ends + half
        low, high = at[ends - half], np.where(above <= n, at[np.minimum(above, n)], ends)
        high = np.minimum(high, ends)
        widths = high - low + 1
        starts = np.cumsum(widths) - widths
        first = np.arange(int(widths.sum())) - np.repeat(starts - low, widths)
        totals = before[first] + costs(first, np.repeat(ends, widths))
        least = np.minimum.reduceat(totals, starts) if len(ends) else totals
        hits = np.flatnonzero(totals == np.repeat(least, widths))
        owner = np.repeat(np.arange(len(ends)), widths)[hits]
        best[ends], at[ends] = least, first[hits[np.unique(owner, return_index=True)[1]]]
        step = half
    return best, at
