"""Pareto fronts of cost and quality: which points no other point beats, and what a cost buys at most."""

from __future__ import annotations

import math
from collections.abc import Sequence


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the points (cost, quality) that no other point beats, from low cost to high.

    One point beats another when it costs no more, is no worse, and differs in one of the two. Points with a
    NaN are never on the front.
    """
    front: list[int] = []
    known = [i for i, (cost, good) in enumerate(points) if not (math.isnan(cost) or math.isnan(good))]
    for i in sorted(known, key=lambda i: (points[i][0], -points[i][1])):
        if not front or points[i][1] > points[front[-1]][1] or points[i] == points[front[-1]]:
            front.append(i)
    return front


def best_at(points: Sequence[tuple[float, float]], cost: float) -> float:
    """Return the best quality among points (cost, quality) that cost no more than ``cost``; -inf if none."""
    return max((good for c, good in points if c <= cost and not math.isnan(good)), default=-math.inf)
