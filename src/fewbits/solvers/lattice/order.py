"""Conversion between natural site order and that of the kernels; see native/jobs/lattice.hpp."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.bits.lattice import SITES, Extent

Array = NDArray[Any]  # reals, or integers of packed links
Shape = tuple[int, int, int, int]


def extent_of(shape: Shape) -> Extent:
    """Return the number of groups along each axis."""
    t, z, y, x = (n // 2 for n in shape)
    return t, z, y, x


def grouped(values: Array) -> Array:
    """Rearrange (T, Z, Y, X, n) to (groups, n, 16)."""
    shape, n = values.shape[:4], values.shape[4]
    halves = [part for size in shape for part in (2, size // 2)]
    inner = values.reshape(*halves, n).transpose(1, 3, 5, 7, 8, 0, 2, 4, 6)
    return np.ascontiguousarray(inner).reshape(-1, n, SITES)


def natural(values: Array, shape: Shape) -> Array:
    """Rearrange (groups, n, 16) to (T, Z, Y, X, n)."""
    n = values.shape[1]
    inner = values.reshape(*extent_of(shape), n, 2, 2, 2, 2).transpose(5, 0, 6, 1, 7, 2, 8, 3, 4)
    return np.ascontiguousarray(inner).reshape(*shape, n)
