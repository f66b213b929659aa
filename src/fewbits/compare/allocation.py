"""Choice of a format for each tensor: the fewest bytes within a bound on noise, or the other way round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isfinite

from fewbits.compare.knapsack import least
from fewbits.errors import ArgumentError

_UNITS = 1 << 50  # of which a bound has so many, so that float64 holds sums


@dataclass(frozen=True)
class Choice:
    """One way to store a tensor."""

    bytes: int
    noise: float  # contribution to the total noise


def allocate(tensors: Sequence[Sequence[Choice]], most_noise: float) -> list[int]:
    """Choose one way to store each tensor: the fewest bytes in total with at most the given noise.

    This is exact but for what sums round off: noise is at most 2^-49 of the bound for each tensor above it.

    Args:
        tensors: the choices of each tensor; one has no noise, so that a solution always exists.
        most_noise: the bound on the sum of the noise; NaN allows none.

    Returns:
        The index of the choice for each tensor; of those with as few bytes, those with the least noise.
    """
    most = most_noise if most_noise > 0 else 0.0
    # Noise beyond the bound is left out at once: it may be so large that sums lose all other.
    within = [[k for k, choice in enumerate(choices) if choice.noise <= most] for choices in tensors]
    pairs = [
        [(_units(choices[k].noise, most), choices[k].bytes) for k in kept]
        for choices, kept in zip(tensors, within, strict=True)
    ]
    return [kept[k] for kept, k in zip(within, least(pairs, _UNITS + len(pairs)), strict=True)]


def _units(noise: float, most: float) -> int:
    """Return noise in whole units of the bound: their sums are the same in any order."""
    return round(Fraction(noise) / Fraction(most) * _UNITS) if 0 < most < inf else 0


def allocate_within(tensors: Sequence[Sequence[Choice]], most_bytes: int) -> list[int]:
    """Choose one way to store each tensor: the least noise in total that fits into the bytes.

    Noise without bound, infinite or NaN, is taken where nothing else fits, and as seldom as can be.

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
    bounded = [[choice.noise for choice in choices if isfinite(choice.noise)] for choices in tensors]
    more = 2 * sum(max(noise, default=0.0) for noise in bounded) or 1.0  # than all that is bounded
    pairs = [[(c.bytes, c.noise if isfinite(c.noise) else more) for c in choices] for choices in tensors]
    return least(pairs, most_bytes)
