"""Largest and smallest magnitudes of arrays, and reproducible initial values by position."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels import native
from fewbits.kernels.arrays.threads import threads
from fewbits.kernels.native import exact_arithmetic

Array = NDArray[np.generic]


@exact_arithmetic()
def largest(x: Array) -> float:
    """Return the largest magnitude of a finite ``x``; zero if it is empty."""
    return float(max(x.max(initial=0), -x.min(initial=0)))


def largest_finite(x: Array) -> tuple[float, bool]:
    """Return the largest finite magnitude of ``x``, and whether all of it is finite.

    ``x`` is float64, float32, float16, or uint16 that holds the bits of bfloat16.
    """
    if x.dtype != np.float64:
        most, _, nonfinite = native.magnitudes(x, threads=threads())
        return most, not nonfinite
    most = largest(x)
    if most < np.inf:  # not NaN either
        return most, True
    return largest(np.where(np.isfinite(x), x, 0)), False


def smallest(x: Array) -> float:
    """Return the smallest magnitude above zero of a float32 ``x``; infinity if there is none."""
    return native.magnitudes(x, threads=threads())[1]


def counter_uniform(seed: int, position: int, unit: float, out: NDArray[np.float32]) -> None:
    """Write the values of the positions from ``position`` on into ``out``, (n,).

    :mod:`fewbits.kernels.reference.values.counter_uniform` defines them.
    """
    native.counter_uniform(seed, position, out.size, unit, threads(), out)
