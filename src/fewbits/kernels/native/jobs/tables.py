"""Tables for the compiled kernels of formats that are lists of values: sorted, with rounding thresholds.

Rounding by any deterministic mode is a step function of its input. Its steps are found by bisection over all
float32 values with the definition itself, so that ties, signs and limits need no second implementation.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewbits.formats import Element, values
from fewbits.kernels.reference.values.encode import encode

_TOP = 0x7F800000  # infinity as an ordered integer


class Table(NamedTuple):
    """The fields of Table in native/jobs/format.hpp."""

    bits: int
    steps: int
    keys: NDArray[np.int32]
    base: NDArray[np.int32]
    codes: NDArray[np.int32]
    values: NDArray[np.float64]
    by_code: NDArray[np.float64]


@lru_cache(maxsize=64)
def table(element: Element, rounding: str, overflow: str) -> Table:
    """Return the table of a posit, lookup or exponent format of at most 16 bits."""
    by_code = np.array(values(element))
    codes = np.argsort(by_code, kind="stable")[: np.count_nonzero(~np.isnan(by_code))]
    rising = by_code[codes]
    if element.power_of_two:  # what lies one step beyond the largest power of two
        beyond = codes[-1] if overflow != "nan" or element.nan_code is None else element.nan_code
        codes, rising = np.append(codes, beyond), np.append(rising, 2 * rising[-1])
    mode = "down" if rounding == "stochastic" else rounding
    keys = _keys(element, codes, mode, overflow)
    lows = np.arange(-(2**15), 2**15, dtype=np.int64) << 16
    base = np.searchsorted(keys, lows, side="right")
    within = np.diff(np.append(base, len(keys)))
    return Table(
        element.bits,
        int(within.max(initial=0)).bit_length(),
        keys.astype(np.int32),
        base.astype(np.int32),
        codes.astype(np.int32),
        rising,
        by_code,
    )


def _keys(element: Element, codes: NDArray[np.int64], mode: str, overflow: str) -> NDArray[np.int64]:
    """Return the first ordered integer whose float32 is rounded to codes[i] or beyond, for i from 1 on."""
    place = np.zeros(2**element.bits, np.int64)
    place[codes[::-1]] = np.arange(len(codes))[::-1]
    lowest = 0 if element.power_of_two else -_TOP + 1  # a negative has no power of two
    low = np.full(len(codes) - 1, lowest, np.int64)  # below every key, or the key itself
    high = np.full(len(codes) - 1, _TOP, np.int64)  # where the last value is certain
    wanted = np.arange(1, len(codes))
    while (low < high).any():
        middle = (low + high) >> 1
        reached = place[encode(element, _float(middle), mode, overflow, None)] >= wanted
        low, high = np.where(reached | (low >= high), low, middle + 1), np.where(reached, middle, high)
    return high


def _float(key: NDArray[np.int64]) -> NDArray[np.float64]:
    # Put together as float64, where all are normal: a thread that flushes subnormals would read zero.
    field, fraction = np.divmod(np.abs(key), 1 << 23)
    significand = np.where(field > 0, fraction + (1 << 23), fraction)
    value = np.copysign(np.ldexp(significand.astype(np.float64), np.maximum(field, 1) - 150), key)
    # An infinity counts as the largest float32: it is certain to be rounded to the last value.
    capped: NDArray[np.float64] = np.minimum(value, float(np.finfo(np.float32).max))
    return capped
