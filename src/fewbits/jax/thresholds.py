"""Elements whose values are not on a grid, as thresholds: posits and lists.

Every rounding but the stochastic one is a step function of the value. Its steps are put here, once for each
format and rounding, on integers that lie in the order of magnitudes; a search finds the code.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from fewbits.formats import Element, Posit, values
from fewbits.formats.value_tables import posit_values
from fewbits.jax.numbers import U32, Numbers

_LOWEST = -200  # exponent of the smallest key that is not zero: below every threshold
_HIGHEST = _LOWEST + 510


class Steps(NamedTuple):
    """Where the code of an element changes.

    The value number ``i`` in rising order is that of x where i thresholds are reached. For x >= 0 those are
    the entries of ``positive`` up to the key of x; for x < 0 all but the entries of ``negative`` up to it.
    """

    codes: NDArray[np.uint32]  # of the values in rising order
    positive: NDArray[np.uint32]
    negative: NDArray[np.uint32]


def key(x: Numbers) -> Array:
    """Return 32 bits in the order of the magnitudes of ``x``; infinity counts as the largest."""
    exponent = jnp.where(x.is_inf, _HIGHEST, jnp.clip(x.exponent, _LOWEST, _HIGHEST))
    place = (exponent - _LOWEST).astype(jnp.uint32) << U32(23)
    bits = place + (x.significand & U32(2**23 - 1)) + U32(1)
    return jnp.where(x.is_zero | x.is_nan, U32(0), bits)


def reached(x: Numbers, steps: Steps) -> Array:
    """Return how many thresholds each number reaches: the place of its value in rising order."""
    at = key(x)
    above = jnp.searchsorted(jnp.asarray(steps.positive), at, side="right")
    below = jnp.searchsorted(jnp.asarray(steps.negative), at, side="right")
    return jnp.where(x.negative & (at > 0), len(steps.negative) - below, above)


@lru_cache(maxsize=64)
def steps(element: Element, rounding: str) -> Steps:
    """Return the steps of a rounding; those of ``stochastic`` are the lower neighbours, as of ``down``."""
    found = values(element)
    codes = np.argsort(found, kind="stable")[: np.count_nonzero(~np.isnan(found))]
    rising = found[codes]
    low, high = rising[:-1], rising[1:]
    at, closed = _thresholds(element, rounding, codes, low, high)
    # x reaches a threshold where x >= it, or x > it for one that is open.
    positive = np.where(at < 0, 0, np.where(closed, _key_from(at), _key_after(at)))
    negative = np.where(at > 0, 0, np.where(closed, _key_after(-at), _key_from(-at)))
    return Steps(codes.astype(np.uint32), np.sort(positive).astype(U32), np.sort(negative).astype(U32))


def _thresholds(
    element: Element, rounding: str, codes: NDArray[Any], low: NDArray[Any], high: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return where each value gives way to the next one, and whether the place itself belongs to that."""
    never = np.zeros(low.shape, np.bool_)
    if rounding in ("down", "stochastic"):
        return high, ~never
    if rounding == "up":
        return low, never
    if rounding == "toward_zero":
        nearer = np.abs(high) < np.abs(low)
        middle = np.where(nearer, low, np.where(high == -low, 0.0, high))
        return middle, ~nearer & (high != -low)
    total = low + high
    part = total - high
    rest = (high - (total - part)) + (low - part)  # exact: Knuth's two-sum
    middle = total / 2
    if isinstance(element, Posit):
        longer = posit_values(element.bits + 1, element.es)
        longer = np.sort(longer[~np.isnan(longer)])
        middle, rest = longer[np.searchsorted(longer, low, side="right")], np.zeros_like(low)
    tie = codes[1:] % 2 == 0 if rounding == "nearest_even" else np.abs(high) >= np.abs(low)
    closed = (rest < 0) | ((rest == 0) & tie)
    if element.reals_only:  # a nonzero value never rounds to zero
        middle = np.where((low == 0) | (high == 0), 0.0, middle)
        closed = np.where(low == 0, False, np.where(high == 0, True, closed))
    return middle, closed


def _key_from(at: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the smallest key of a number that is at least ``at``, itself at least zero."""
    whole, rest = _split(at)
    return whole + (rest > 0)


def _key_after(at: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the smallest key of a number above ``at``, itself at least zero."""
    return _split(at)[0] + 1


def _split(at: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the key of the largest number of 24 bits up to ``at``, and what is left."""
    fraction, exponent = np.frexp(np.maximum(at, 0))
    significand = np.ldexp(fraction, 53).astype(np.int64)
    place = (exponent.astype(np.int64) - 1 - _LOWEST) << 23
    bits = place + (significand >> 29) - 2**23 + 1
    return np.where(at > 0, np.maximum(bits, 1), 0), np.where(at > 0, significand & (2**29 - 1), 0)
