"""Formats that are lists of values, posits and lookups: where rounding changes, as integers in rising order.

Rounding by any mode but the stochastic one is a step function, so its code is found by one search among the
places where it steps. Numbers are compared as integers: their bits, those below zero counted down.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewbits.formats import Element, values
from fewbits.kernels.bits.options import Options
from fewbits.kernels.portable.values.floats import DOUBLE
from fewbits.kernels.portable.values.stochastic import goes_up
from fewbits.kernels.reference.values.encode import sorted_codes

Tensor = torch.Tensor
Keys = NDArray[np.int64]


def encode_listed(element: Element, x: Tensor, chosen: Options, drawn: Tensor | None) -> Tensor:
    """Return the int32 code of every float64 ``x``."""
    key = _key(x)
    if chosen.rounding != "stochastic":
        place = torch.searchsorted(_constant(thresholds, x, element, chosen.rounding), key, right=True)
    else:
        assert drawn is not None
        rising, ordered = _rising(element), _constant(_rising, x, element)
        clipped = torch.where(x.isnan(), 0.0, x).clamp(rising[0], rising[-1])
        place = torch.searchsorted(_constant(_rising_keys, x, element), _key(clipped), right=True) - 1
        place = place.clamp(0, len(rising) - 2)
        below, above = ordered[place], ordered[place + 1]
        up = goes_up((clipped - below) / (above - below), drawn, chosen.random_bits)
        place = place + (up | (clipped == above)).to(place.dtype)
    code = _constant(_codes, x, element)[place].to(torch.int32)
    if element.nan_code is None:
        return code
    return torch.where((x.view(torch.int64) & DOUBLE.magnitude) < DOUBLE.infinity, code, element.nan_code)


def decode_listed(element: Element, codes: Tensor) -> Tensor:
    """Return the float64 value of every code."""
    return _constant(values, codes, element)[codes.to(torch.int64)]


def _constant(table: Callable[..., NDArray[Any]], like: Tensor, *of: Any) -> Tensor:
    """Return ``table(*of)`` where ``like`` is, copied there once; a graph holds a copy of its own."""
    if type(like) is not Tensor:  # but that of a tracer
        return torch.tensor(table(*of), device=like.device)
    return _copied(table, like.device, *of)


@lru_cache(maxsize=256)
def _copied(table: Callable[..., NDArray[Any]], device: torch.device, *of: Any) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(table(*of), device=device)


def _rising(element: Element) -> NDArray[np.float64]:
    return sorted_codes(element)[0]


def _rising_keys(element: Element) -> Keys:
    return keys(_rising(element))


def _codes(element: Element) -> NDArray[Any]:
    return sorted_codes(element)[1]


def _key(x: Tensor) -> Tensor:
    bits = x.view(torch.int64)
    # Side by side, or torch warns that it copies them.
    return torch.where(bits < 0, -(bits & DOUBLE.magnitude), bits).contiguous()


def keys(x: NDArray[np.float64]) -> Keys:
    """Return float64 as integers in the same order; minus zero equals zero."""
    bits = np.ascontiguousarray(x + 0.0).view(np.int64)
    ordered: Keys = np.where(bits < 0, -(bits & np.int64(DOUBLE.magnitude)), bits)
    return ordered


@lru_cache(maxsize=64)
def thresholds(element: Element, rounding: str) -> Keys:
    """Return, for each value but the smallest, the key of the first number that is rounded to it or above."""
    rising, codes, middle, rest = sorted_codes(element)
    low, high = rising[:-1], rising[1:]
    from_high, past_low = keys(high), keys(low) + 1
    if rounding == "up":
        return past_low
    if rounding == "down":
        return from_high
    if rounding == "toward_zero":
        opposite = np.where(high == -low, 1, from_high)  # no zero between them: the sign decides
        return np.where((high != -low) & (np.abs(high) < np.abs(low)), past_low, opposite)
    even = codes[1:] & 1 == 0
    tie_up = even if rounding == "nearest_even" else np.abs(high) >= np.abs(low)
    at_middle_up = (rest < 0) | ((rest == 0) & tie_up)
    nearest = keys(middle) + ~at_middle_up
    if element.reals_only:  # a nonzero value never rounds to zero
        nearest = np.where(low == 0, 1, np.where(high == 0, 0, nearest))
    rising_keys: Keys = nearest
    return rising_keys
