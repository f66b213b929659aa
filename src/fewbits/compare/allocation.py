"""Choice of a format for each tensor: the fewest bytes in total within a bound on the total noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Choice:
    """One way to store a tensor."""

    bytes: int
    noise: float  # contribution to the total noise


def allocate(tensors: Sequence[Sequence[Choice]], most_noise: float) -> list[int]:
    """Choose one way to store each tensor: few bytes in total, with at most the given noise.

    Each tensor starts with its smallest choice. The step that removes the most noise per byte is taken
    repeatedly: a greedy descent along the lower convex hulls, optimal up to one step (Shoham and Gersho,
    Efficient Bit Allocation for an Arbitrary Set of Quantizers, 1988). At the end, steps that turn out to be
    unnecessary are undone, those that save the most bytes first.

    Args:
        tensors: the choices of each tensor; one has no noise, so that a solution always exists.
        most_noise: the bound on the sum of the noise.

    Returns:
        The index of the choice for each tensor.
    """
    hulls = [hull(choices) for choices in tensors]
    at = [0] * len(hulls)
    picked = [choices[hull[0]] for choices, hull in zip(tensors, hulls, strict=True)]
    steps = sorted(
        (_slope(choices[a], choices[b]), i)
        for i, (choices, hull) in enumerate(zip(tensors, hulls, strict=True))
        for a, b in pairwise(hull)
    )
    noise = sum(choice.noise for choice in picked)
    for _, i in steps:  # slopes rise along a hull, so the steps of a tensor stay in order
        if noise <= most_noise:
            break
        at[i] += 1
        picked[i] = tensors[i][hulls[i][at[i]]]
        noise = sum(choice.noise for choice in picked)
    chosen = [hull[k] for hull, k in zip(hulls, at, strict=True)]
    return _taken_back(tensors, chosen, most_noise)


def hull(choices: Sequence[Choice]) -> list[int]:
    """Return the choices on the lower convex hull of noise over bytes, by increasing bytes."""
    found: list[int] = []
    for i in sorted(range(len(choices)), key=lambda i: (choices[i].bytes, choices[i].noise)):
        if found and choices[i].noise >= choices[found[-1]].noise:
            continue
        while len(found) > 1 and _slope(choices[found[-2]], choices[found[-1]]) >= _slope(
            choices[found[-1]], choices[i]
        ):
            found.pop()
        found.append(i)
    return found


def _slope(few: Choice, many: Choice) -> float:
    """Return the change of noise per additional byte; negative."""
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
