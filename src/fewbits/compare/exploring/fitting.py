"""Tables of values that lose least on given vectors: optimal quantizers of what is left beside the scales.

A scalar quantizer of least squared error (Lloyd 1982, Max 1960) is found exactly on a grid of 4096 cells, by
dynamic programming over where one value's cells end and the next one's begin (Bruce 1965), each row of it by
halving (the costs are concave, so the best beginnings rise with the ends).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fewbits import kernels
from fewbits.compare.exploring.space import on_steps
from fewbits.compare.exploring.vectors import Singles
from fewbits.errors import FormatError
from fewbits.formats import Block, Element, Lookup

CELLS = 4096

Reals = NDArray[np.float64]
Indices = NDArray[np.int64]
Costs = Callable[[Indices, Indices], Reals]


def fitted_table(
    values: Singles,
    bits: int,
    scale: Element,
    size: int,
    outer: Element | None = None,
    scale_rule: str = "floor",
) -> Block | None:
    """Return the format of ``2^bits`` values that loses least on these vectors; None if there is none.

    Values are divided by the scales that the codec chooses for a table whose largest value is one. The
    largest value of the fitted table is held at one where another would change these scales: under every
    scale that is a real number, and under powers of two where it would be below one or the rule asks for it.

    Args:
        values: (vectors, length), finite.
        bits: of a code.
        scale: of the blocks.
        size: of the blocks.
        outer: the scale over the scales, if any.
        scale_rule: how power-of-two scales are chosen.
    """

    def block(table: Sequence[float]) -> Block:
        return Block(Lookup(tuple(table)), scale, size, outer)

    scales = _scales(values, block([-1.0, 1.0]), scale_rule)
    normal, weights = (values / scales).reshape(-1), np.square(scales).reshape(-1)
    most = max(1.0, float(np.abs(normal).max()))
    try:
        if scale.power_of_two:
            free = block(_written(optimal_values(normal, weights, 2**bits, most)))
            if np.array_equal(_scales(values, free, scale_rule), scales):
                return free
    except FormatError:  # no value is above zero
        pass
    held = optimal_values(normal, weights, 2**bits, most, fixed=1.0)
    try:
        return block(_written(np.minimum(held, 1.0)))
    except FormatError:  # all values are one and the same
        return None


def _scales(values: Singles, format: Block, scale_rule: str) -> Reals:
    """Return what the codec multiplies the element of each value by."""
    rule = scale_rule if kernels.has_scale_rule(format) else "floor"
    limits = kernels.limits(values, format, 1, kernels.options(format, scale_rule=rule))
    return np.broadcast_to(limits / format.element.max, values.shape)


def _written(table: Reals) -> list[float]:
    written: list[float] = np.unique([on_steps(v) for v in table]).tolist()
    return written


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
