"""One choice for each of several things: the least cost in total within a bound on their size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Pair = tuple[float, float]  # size and cost of a choice
_MOST = 1 << 14  # sums that are kept; hundreds of things have more, and take minutes with them

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]


def least(things: Sequence[Sequence[Pair]], most: float) -> list[int]:
    """Choose a pair for each thing: the least cost in total with at most a total size.

    This is the multiple-choice knapsack. Thing after thing, all sums of sizes and costs are kept of which
    none is better in both (Kellerer, Pferschy, Pisinger, Knapsack Problems, 2004, section 11.5). A sum is
    dropped where the linear relaxation of what is left says that it cannot beat a solution already known.
    Where more than 16,384 are left, as with hundreds of things, those are kept of which it promises most.

    Args:
        things: sizes and costs of the choices of each.
        most: the bound on the sum of the sizes, which the smallest choices keep.

    Returns:
        The index of the choice for each thing.
    """
    sizes, costs, steps = np.zeros(1), np.zeros(1), _Steps.of(things)
    slack = 1e-12 * float(steps.first[:, 1].sum())  # the relaxation adds up in another order
    best, trail = np.inf, list[tuple[Integers, Integers]]()
    for i, choices in enumerate(things):
        rest = steps.behind(i)
        all_sizes = (sizes[:, None] + np.array([size for size, _ in choices])).ravel()
        all_costs = (costs[:, None] + np.array([cost for _, cost in choices])).ravel()
        left = most - all_sizes - rest.smallest
        fits = np.flatnonzero(left >= 0)
        reached = all_costs[fits] + rest.reached(left[fits])
        best = min(best, float(reached.min()))
        bounds = all_costs[fits] + rest.at_least(left[fits])
        better = np.flatnonzero((bounds <= best + slack) | (reached == reached.min()))
        if better.size > _MOST:
            lowest_first = better[np.argpartition(bounds[better], _MOST)]
            better = np.union1d(lowest_first[:_MOST], reached.argmin())
        promising = fits[better]
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
class _Steps:
    """The steps along the hulls of all things, the steepest first."""

    first: Reals  # size and cost of the smallest choice of each thing
    thing: Integers  # whose step it is
    size: Reals
    gain: Reals  # of cost; negative

    @classmethod
    def of(cls, things: Sequence[Sequence[Pair]]) -> _Steps:
        hulls = [_hull(choices) for choices in things]
        steps = [
            (_slope(a, b), i, b[0] - a[0], b[1] - a[1]) for i, h in enumerate(hulls) for a, b in pairwise(h)
        ]
        steps.sort(key=lambda step: step[0])
        _, thing, size, gain = np.array(steps, np.float64).reshape(-1, 4).T
        return cls(
            np.array([h[0] for h in hulls], np.float64).reshape(-1, 2), thing.astype(np.int64), size, gain
        )

    def behind(self, i: int) -> _Rest:
        """Return the things behind number i, not chosen for yet."""
        theirs, (smallest, start) = self.thing > i, self.first[i + 1 :].sum(axis=0)
        more, cost = np.cumsum(self.size[theirs]), start + np.cumsum(self.gain[theirs])
        return _Rest(float(smallest), np.r_[0.0, more], np.r_[start, cost])


@dataclass(frozen=True)
class _Rest:
    """Some things, by the size that they may take above the smallest."""

    smallest: float
    more: Reals  # size above the smallest, after each step
    cost: Reals  # with that size

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
