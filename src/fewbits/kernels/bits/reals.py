"""The dtypes of arguments and results: float64, float32, float16, and bfloat16 as bits in uint16."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BFLOAT16 = np.dtype(np.uint16)  # NumPy has no bfloat16 of its own
_BFLOAT16_MAX = (2 - 2.0**-7) * 2.0**127


def widened(x: Array) -> Array:
    """Return ``x`` as float32, or unchanged if it is float64."""
    if x.dtype == BFLOAT16:
        return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return x if x.dtype == np.float64 else x.astype(np.float32, copy=False)


def rounded_to_dtype(y: Array, dtype: Any) -> Array:
    """Return float32 or float64 ``y`` in another type: rounded to float32 first, then to nearest even.

    All functions round results for float16 and bfloat16 to float32 first, so that they agree.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == np.float64:
            return y.astype(np.float64, copy=False)
        single = y.astype(np.float32, copy=False)
        if dtype != BFLOAT16:
            return single.astype(dtype, copy=False)
        bits = np.ascontiguousarray(single).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return np.where(np.isnan(single), np.uint32(0x7FC0), rounded).astype(np.uint16).reshape(y.shape)


def largest_finite(dtype: Any) -> float:
    """Return the largest value of a type of this module."""
    return _BFLOAT16_MAX if dtype == BFLOAT16 else float(np.finfo(dtype).max)


def without_infinity(x: Array) -> Array:
    """Return ``x`` widened, infinity replaced by the largest value of x's own type and NaN by zero."""
    top = largest_finite(x.dtype)
    return np.nan_to_num(widened(x), nan=0.0, posinf=top, neginf=-top)
