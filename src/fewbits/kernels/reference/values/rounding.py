"""Rounding of an exact number to a grid of multiples of a power of two, in integer arithmetic.

A finite float64 is significand x 2^exponent with an integer significand below 2^53. Dropping ``shift`` low
bits of that integer is rounding, and every mode is one comparison of what was dropped (IEEE 754-2019,
section 4.3).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.reference.values.stochastic import Draws, dropped_bits_go_up

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]
Booleans = NDArray[np.bool_]


def split(x: Reals) -> tuple[Integers, Integers]:
    """Return (significand, exponent) with ``|x| == significand * 2**exponent`` exactly.

    The significand of a nonzero value has exactly 53 bits, subnormal float64 included; that of zero is 0.
    """
    fraction, exponent = np.frexp(np.abs(x))
    # frexp gives zero the exponent 0; below every format's smallest it cannot be taken for a large value.
    return np.ldexp(fraction, 53).astype(np.int64), np.where(x == 0, -4000, exponent.astype(np.int64) - 53)


def drop_bits(
    significand: Integers, shift: Any, negative: Booleans, rounding: str, draws: Draws | None
) -> Integers:
    """Return ``significand / 2**shift`` rounded to an integer.

    Args:
        significand: below 2^53.
        shift: bits to drop, at least 0; from 54 on everything is dropped.
        negative: whether the number that the significand belongs to is below zero; directed modes need it.
        rounding: one of :data:`fewbits.kernels.bits.options.ROUNDINGS`.
        draws: uniform integers of 16 or 32 bits for stochastic rounding, of the significand's shape.
    """
    whole_shift, shift = shift, np.minimum(shift, 62)
    kept = significand >> shift
    dropped = significand - (kept << shift)
    if rounding == "nearest_even":
        twice = dropped << 1
        up = (twice > (1 << shift)) | ((twice == (1 << shift)) & (kept & 1 == 1))
    elif rounding == "nearest_away":
        up = ((dropped << 1) >= (1 << shift)) & (dropped > 0)
    elif rounding == "toward_zero":
        up = np.zeros(kept.shape, np.bool_)
    elif rounding == "up":
        up = (dropped > 0) & ~negative
    elif rounding == "down":
        up = (dropped > 0) & negative
    else:
        assert draws is not None
        up = dropped_bits_go_up(dropped, whole_shift, draws)
    return np.asarray(kept + up)


def away_from_zero_on_overflow(negative: Booleans, rounding: str) -> Booleans:
    """Return where a value above the largest becomes infinity (IEEE 754-2019, section 7.4)."""
    if rounding == "toward_zero":
        return np.zeros(negative.shape, np.bool_)
    if rounding in ("up", "down"):
        return negative if rounding == "down" else ~negative
    return np.ones(negative.shape, np.bool_)
