"""One choice for each of several things: the least cost in total within a bound on their size, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Pair = tuple[float, float]  # size and cost of a choice
Integers = NDArray[np.int64]
Reals = NDArray[np.float64]


def least(things: Sequence[Sequence[Pair]], most: float) -> list[int]:
    """Choose a pair for each thing: the least cost in total with at most a total size.

    This is the multiple-choice knapsack. Thing after thing, all sums of sizes and costs are kept of which
    none is better in both (Kellerer, Pferschy, Pisinger, Knapsack Problems, 2004, section 11.5). A sum is
    dropped where the linear relaxation of what is left says that it cannot beat a solution already known.

    Args:
        things: sizes and costs of the choices of each.
        most: the bound on the sum of the sizes, which the smallest choices keep.

    Returns:
        The index of the choice for each thing.
    """
    sizes, costs = np.zeros(1), np.zeros(1)
    slack = 1e-12 * float(_Rest.of(things).cost[0])  # the relaxation adds up in another order
    best, trail = np.inf, list[tuple[Integers, Integers]]()
    for i, choices in enumerate(things):
        rest = _Rest.of(things[i + 1 :])
        all_sizes = (sizes[:, None] + np.array([size for size, _ in choices])).ravel()
        all_costs = (costs[:, None] + np.array([cost for _, cost in choices])).ravel()
        left = most - all_sizes - rest.smallest
        fits = np.flatnonzero(left >= 0)
        best = min(best, float((all_costs[fits] + rest.reached(left[fits])).min()))
        promising = fits[all_costs[fits] + rest.at_least(left[fits]) <= best + slack]
        order = promising[np.lexsort((all_costs[promising], all_sizes[promising]))]
        lowest = np.minimum.accumulate(all_costs[order])
        kept = order[np.r_[True, all_costs[order][1:] < lowest[:-1]]]
        sizes, costs = all_sizes[kept], all_costs[kept]
        trail.append((kept // len(choices), kept % len(choices)))
    at = int(np.argmin(costs))
    chosen = []
    for parents, picked in reversed(trail):
        chosen.append(int(picked[at]))
        at = int(parents[at])
    return chosen[::-1]


@dataclass(frozen=True)
class _Rest:
    """The things not chosen for yet, by the size that they may take above the smallest."""

    smallest: float
    more: Reals  # size above the smallest, after each step along the hulls, the steepest first
    cost: Reals  # with that size

    @classmethod
    def of(cls, things: Sequence[Sequence[Pair]]) -> _Rest:
        hulls = [_hull(choices) for choices in things]
        steps = [(b[0] - a[0], b[1] - a[1]) for h in hulls for a, b in pairwise(h)]
        steps.sort(key=lambda step: step[1] / step[0])
        start = sum(h[0][1] for h in hulls)
        more = np.cumsum([0.0, *(size for size, _ in steps)])
        return cls(sum(h[0][0] for h in hulls), more, np.cumsum([start, *(gain for _, gain in steps)]))

    def reached(self, left: Reals) -> Reals:
        """Return a cost that these sizes reach: after all whole steps that fit."""
        return self.cost[np.searchsorted(self.more, left, side="right") - 1]

    def at_least(self, left: Reals) -> Reals:
        """Return what no choice with these sizes falls below: with a part of the next step."""
        return np.interp(left, self.more, self.cost)


def _hull(choices: Sequence[Pair]) -> list[Pair]:
    """Return the choices on the lower convex hull of cost over size, by increasing size."""
    found: list[Pair] = []
    for one in sorted(choices):
        if found and one[1] >= found[-1][1]:
            continue
        while len(found) > 1 and _slope(found[-2], found[-1]) >= _slope(found[-1], one):
            found.pop()
        found.append(one)
    return found


def _slope(small: Pair, large: Pair) -> float:
    """Return the change of cost per additional size; negative."""
    return (large[1] - small[1]) / (large[0] - small[0])
