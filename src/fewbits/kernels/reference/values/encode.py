"""From numbers to the codes of one element format: the definition of a scalar cast."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fewbits.formats import Element, Exponent, Fixed, Float, Posit, values
from fewbits.formats.value_tables import posit_values
from fewbits.kernels.bits.packing import code_dtype
from fewbits.kernels.reference.values.rounding import (
    Booleans,
    Integers,
    Reals,
    away_from_zero_on_overflow,
    drop_bits,
    split,
)
from fewbits.kernels.reference.values.stochastic import Draws, goes_up


def encode(
    element: Element, x: Reals, rounding: str, overflow: str, draws: Draws | None
) -> NDArray[np.unsignedinteger]:
    """Return the code of every value.

    Rules, in this order:

    * NaN takes the NaN code; a format without one never sees NaN here.
    * A value is rounded as if the exponent had no upper bound; a result above the largest value becomes the
        largest value, infinity or NaN, as ``overflow`` says (IEEE 754-2019, section 7.4; OFP8 v1.0, section
        5).
    * Infinity is beyond the largest value.
    * Zero, and a value that rounds to zero, keeps its sign if minus zero has a code.

    Args:
        element: the format.
        x: values of any shape, float64.
        rounding: one of ``ROUNDINGS``.
        overflow: ``saturate``, ``inf`` or ``nan``; the caller has checked that the format can.
        draws: uniform integers of 16 or 32 bits, of x's shape, when rounding is stochastic.
    """
    match element:
        case Float():
            codes = _encode_float(element, x, rounding, overflow, draws)
        case Fixed():
            codes = _encode_fixed(element, x, rounding, draws)
        case Exponent():
            codes = _encode_exponent(element, x, rounding, overflow, draws)
        case _:  # posits and lists
            codes = _encode_table(element, x, rounding, draws)
    return codes.astype(code_dtype(element.bits))


def _round_to_grid(
    x: Reals, emin: int, mantissa_bits: int, rounding: str, draws: Draws | None
) -> tuple[Integers, Integers, Booleans]:
    """Round |x| to multiples of 2^(max(exponent of x, emin) - mantissa_bits).

    Returns (count, binade, negative): the magnitude is ``count * 2**(binade - mantissa_bits)``.
    """
    finite = np.where(np.isfinite(x), x, 0.0)
    significand, exponent = split(finite)
    negative = np.signbit(x)
    binade = np.maximum(exponent + 52, emin)
    count = drop_bits(significand, binade - mantissa_bits - exponent, negative, rounding, draws)
    return count, binade, negative


def _encode_float(f: Float, x: Reals, rounding: str, overflow: str, draws: Draws | None) -> Integers:
    m = f.mantissa_bits
    count, binade, negative = _round_to_grid(x, f.emin, m, rounding, draws)
    # A subnormal count is below 2^m and a carry reaches 2^(m+1): in both cases the sum is the right code.
    code = ((binade - f.emin) << m) + count
    with np.errstate(over="ignore"):  # of a float64 that is rounded beyond the largest
        beyond = (np.ldexp(count.astype(np.float64), binade - m) > f.max) | np.isinf(x)
    largest = _encode_exact_max(f)
    further = away_from_zero_on_overflow(negative, rounding) | np.isinf(x)
    code = np.where(beyond, largest, code)
    if overflow == "inf" and f.inf_code is not None:
        code = np.where(beyond & further, f.inf_code, code)
    sign = np.where(negative & (f.signed_zero | (code != 0)), 1 << (f.bits - 1), 0)
    not_a_number = np.isnan(x) | (beyond & further & (overflow == "nan"))
    return code | sign if f.nan_code is None else np.where(not_a_number, f.nan_code, code | sign)


def _encode_exact_max(f: Float) -> int:
    lost = 2 if f.special == "fn" and f.mantissa_bits > 0 else 1
    return ((f.emax - f.emin) << f.mantissa_bits) + (2 << f.mantissa_bits) - lost


def _encode_fixed(f: Fixed, x: Reals, rounding: str, draws: Draws | None) -> Integers:
    # The grid is even: one binade, as wide as needed, in steps of 2^-frac.
    clipped = np.clip(x, f.min - 4 * f.smallest_normal, f.max + 4 * f.smallest_normal)
    count, _, negative = _round_to_grid(clipped, 60 - f.frac, 60, rounding, draws)
    signed: Integers = np.clip(np.where(negative, -count, count), round(f.min / f.smallest_normal), f.steps)
    if f.coding == "sign_magnitude":
        return np.asarray(np.abs(signed) | np.where(negative, 1 << (f.bits - 1), 0))
    return np.asarray(signed & ((1 << f.bits) - 1))


def _encode_exponent(f: Exponent, x: Reals, rounding: str, overflow: str, draws: Draws | None) -> Integers:
    # A one-bit significand is always odd, so a tie to even goes up, as in ml_dtypes' float8_e8m0fnu.
    count, binade, _ = _round_to_grid(x, -2000, 0, rounding, draws)
    exponent = binade + (count > 1)
    code = np.where(x > 0, np.clip(exponent, f.emin, f.emax), f.emin) + f.bias
    beyond = np.isposinf(x) | ((exponent > f.emax) & away_from_zero_on_overflow(x < 0, rounding))
    code = np.where(np.isposinf(x), f.emax + f.bias, code)
    return np.where(np.isnan(x) | (x < 0) | (beyond & (overflow == "nan")), f.nan_code, code)


@lru_cache(maxsize=64)
def sorted_codes(element: Element) -> tuple[Reals, Integers, Reals, Reals]:
    """Return the values in rising order, their codes, and the place between neighbours where nearest changes.

    The place is the third array plus the fourth, which holds what float64 cannot add to the third.

    That place is the mean in value, but for posits the mean in bit string: the value of the posit one bit
    longer that lies between them (Standard for Posit Arithmetic, 2022, section 4.1).
    """
    table = values(element)
    codes = np.argsort(table, kind="stable")[: np.count_nonzero(~np.isnan(table))]
    rising = table[codes]
    low, high = rising[:-1], rising[1:]
    total = low + high
    part = total - high
    rest = (high - (total - part)) + (low - part)  # exact: Knuth's two-sum
    middle = total / 2
    if isinstance(element, Posit):
        longer = _longer_posits(element)
        middle, rest = longer[np.searchsorted(longer, low, side="right")], np.zeros_like(low)
    return rising, codes.astype(np.int64), middle, rest / 2


def _longer_posits(p: Posit) -> Reals:
    longer = posit_values(p.bits + 1, p.es)
    return np.sort(longer[~np.isnan(longer)])


def _encode_table(element: Element, x: Reals, rounding: str, draws: Draws | None) -> Integers:
    rising, codes, middle, rest = sorted_codes(element)
    clipped = np.clip(np.where(np.isnan(x), 0.0, x), rising[0], rising[-1])
    low = np.clip(np.searchsorted(rising, clipped, side="right") - 1, 0, len(rising) - 2)
    below, above = rising[low], rising[low + 1]
    if rounding == "stochastic":
        assert draws is not None
        up = goes_up((clipped - below) / (above - below), draws)
    elif rounding in ("nearest_even", "nearest_away"):
        at_middle = clipped == middle[low]
        tie = at_middle & (rest[low] == 0)
        to_above = (codes[low + 1] & 1 == 0) if rounding == "nearest_even" else np.abs(above) >= np.abs(below)
        up = (clipped > middle[low]) | (at_middle & (rest[low] < 0)) | (tie & to_above)
        if element.reals_only:  # a nonzero value never rounds to zero
            up = np.where(
                (below == 0) & (clipped > 0), True, np.where((above == 0) & (clipped < 0), False, up)
            )
    elif rounding == "toward_zero":
        # The smaller magnitude; where two are equal there is no zero between them, and the sign decides.
        nearer = np.where(above == -below, clipped > 0, np.abs(above) < np.abs(below))
        up = nearer & (clipped > below)
    else:
        up = (rounding == "up") & (clipped > below)
    code = codes[low + (up | (clipped == above))]
    # An infinity is not a real number (Standard for Posit Arithmetic, 2022, section 6.5).
    return code if element.nan_code is None else np.where(np.isfinite(x), code, element.nan_code)
