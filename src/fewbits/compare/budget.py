"""Choice of a format for each tensor: the least noise in total within a number of bytes, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fewbits.compare.allocation import Choice, hull
from fewbits.errors import ArgumentError

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]


def allocate_within(tensors: Sequence[Sequence[Choice]], most_bytes: int) -> list[int]:
    """Choose one way to store each tensor: the least noise in total that fits into the bytes.

    This is the multiple-choice knapsack. Tensor after tensor, all sums of bytes and noise are kept of which
    none is better in both (Kellerer, Pferschy, Pisinger, Knapsack Problems, 2004, section 11.5). A sum is
    dropped where the linear relaxation of what is left says that it cannot beat a solution already known.

    Args:
        tensors: the choices of each tensor.
        most_bytes: the bound on the sum of their bytes.

    Returns:
        The index of the choice for each tensor.

    Raises:
        ArgumentError: even the smallest choices take more bytes.
    """
    fewest = sum(min(choice.bytes for choice in choices) for choices in tensors)
    if fewest > most_bytes:
        raise ArgumentError(f"the smallest choices take {fewest} bytes, of which {most_bytes} are allowed")
    sizes, noises = np.zeros(1, np.int64), np.zeros(1)
    slack = 1e-12 * float(_Rest.of(tensors).noise[0])  # the relaxation adds up in another order
    best, trail = np.inf, list[tuple[Integers, Integers]]()
    for i, choices in enumerate(tensors):
        rest = _Rest.of(tensors[i + 1 :])
        all_sizes = (sizes[:, None] + np.array([c.bytes for c in choices])).ravel()
        all_noises = (noises[:, None] + np.array([c.noise for c in choices])).ravel()
        left = most_bytes - all_sizes - rest.fewest
        fits = np.flatnonzero(left >= 0)
        best = min(best, float((all_noises[fits] + rest.reached(left[fits])).min()))
        promising = fits[all_noises[fits] + rest.at_least(left[fits]) <= best + slack]
        order = promising[np.lexsort((all_noises[promising], all_sizes[promising]))]
        lowest = np.minimum.accumulate(all_noises[order])
        kept = order[np.r_[True, all_noises[order][1:] < lowest[:-1]]]
        sizes, noises = all_sizes[kept], all_noises[kept]
        trail.append((kept // len(choices), kept % len(choices)))
    at = int(np.argmin(noises))
    chosen = []
    for parents, picked in reversed(trail):
        chosen.append(int(picked[at]))
        at = int(parents[at])
    return chosen[::-1]


@dataclass(frozen=True)
class _Rest:
    """The tensors not chosen for yet, by the bytes that they may take above the fewest."""

    fewest: int
    more: Integers  # bytes above the fewest, after each step along the hulls, the steepest first
    noise: Reals  # with those bytes

    @classmethod
    def of(cls, tensors: Sequence[Sequence[Choice]]) -> _Rest:
        hulls = [[choices[k] for k in hull(choices)] for choices in tensors]
        steps = [(b.bytes - a.bytes, b.noise - a.noise) for h in hulls for a, b in pairwise(h)]
        steps.sort(key=lambda step: step[1] / step[0])
        start = sum(h[0].noise for h in hulls)
        more = np.cumsum([0, *(size for size, _ in steps)], dtype=np.int64)
        return cls(sum(h[0].bytes for h in hulls), more, np.cumsum([start, *(gain for _, gain in steps)]))

    def reached(self, left: Integers) -> Reals:
        """Return a noise that these bytes reach: after all whole steps that fit."""
        return self.noise[np.searchsorted(self.more, left, side="right") - 1]

    def at_least(self, left: Integers) -> Reals:
        """Return what no choice with these bytes falls below: with a part of the next step."""
        return np.interp(left, self.more, self.noise)
