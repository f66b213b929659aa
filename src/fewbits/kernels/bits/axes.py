"""The axis along which blocks lie."""

from __future__ import annotations

import numpy as np

from fewbits.errors import ArgumentError


def checked_axis(axis: int, ndim: int) -> int:
    """Return ``axis`` as a non-negative index.

    Raises:
        ArgumentError: the array has no such axis.
    """
    if isinstance(axis, bool) or not isinstance(axis, int | np.integer):
        raise ArgumentError(f"axis={axis!r} is not an integer")
    if not -max(ndim, 1) <= axis < max(ndim, 1):
        raise ArgumentError(
            f"axis={axis} is out of range for an array of {ndim} dimensions; "
            f"use {-max(ndim, 1)} to {max(ndim, 1) - 1}"
        )
    return int(axis) % max(ndim, 1)
