"""Which format each tensor takes, so that all together are small and their noise stays within bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Choice:
    """One way to store a tensor."""

    bytes: int
    noise: float  # what it adds to the noise of the whole


def allocate(tensors: Sequence[Sequence[Choice]], most_noise: float) -> list[int]:
    """Choose one way to store each tensor: few bytes in all, and no more noise than is allowed.

    Each tensor begins with its fewest bytes. Then the step that takes away the most noise for a byte is made,
    over and over (the greedy way along the lower convex hulls, which is optimal up to one step: Shoham and
    Gersho, Efficient Bit Allocation for an Arbitrary Set of Quantizers, 1988), and at the end steps that turn
    out not to be needed are taken back, those that save most first.

    Args:
        tensors: the choices of each; one of them without noise, so that there is always an answer.
        most_noise: the bound for the sum.

    Returns:
        The index of the choice for each tensor.
    """
    hulls = [_hull(choices) for choices in tensors]
    at = [0] * len(hulls)
    picked = [choices[hull[0]] for choices, hull in zip(tensors, hulls, strict=True)]
    steps = sorted(
        (_slope(choices[a], choices[b]), i)
        for i, (choices, hull) in enumerate(zip(tensors, hulls, strict=True))
        for a, b in pairwise(hull)
    )
    noise = sum(choice.noise for choice in picked)
    for _, i in steps:  # along a hull the slopes rise, so the steps of one tensor come in their order
        if noise <= most_noise:
            break
        at[i] += 1
        picked[i] = tensors[i][hulls[i][at[i]]]
        noise = sum(choice.noise for choice in picked)
    chosen = [hull[k] for hull, k in zip(hulls, at, strict=True)]
    return _taken_back(tensors, chosen, most_noise)


def _hull(choices: Sequence[Choice]) -> list[int]:
    """Return the choices on the lower convex hull of noise over bytes, from few bytes to many."""
    hull: list[int] = []
    for i in sorted(range(len(choices)), key=lambda i: (choices[i].bytes, choices[i].noise)):
        if hull and choices[i].noise >= choices[hull[-1]].noise:
            continue
        while len(hull) > 1 and _slope(choices[hull[-2]], choices[hull[-1]]) >= _slope(
            choices[hull[-1]], choices[i]
        ):
            hull.pop()
        hull.append(i)
    return hull


def _slope(few: Choice, many: Choice) -> float:
    """Return the change of noise for each byte more; below zero."""
    return (many.noise - few.noise) / (many.bytes - few.bytes)


def _taken_back(tensors: Sequence[Sequence[Choice]], chosen: list[int], most_noise: float) -> list[int]:
    noise = sum(choices[k].noise for choices, k in zip(tensors, chosen, strict=True))
    moves = sorted(
        (choices[j].bytes - choices[k].bytes, i, j)
        for i, (choices, k) in enumerate(zip(tensors, chosen, strict=True))
        for j in range(len(choices))
        if choices[j].bytes < choices[k].bytes
    )
    moved: set[int] = set()
    for _, i, j in moves:
        more = noise - tensors[i][chosen[i]].noise + tensors[i][j].noise
        if i not in moved and more <= most_noise:
            noise, chosen[i] = more, j
            moved.add(i)
    return chosen
