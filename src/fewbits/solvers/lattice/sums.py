"""Exact sums of arrays, as a few numbers that together are the sum: no order changes what they round to."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.bits.lattice import added

Reals = NDArray[np.float64]

KEPT = 3  # numbers without overlap: what they leave out is below 2^-150 of the sum


def exact_parts(v: Reals) -> tuple[float, ...]:
    """Return :data:`KEPT` numbers that add up to the sum of ``v``.

    Adding and taking off a power of two far above all numbers leaves their leading bits, multiples of one
    unit, whose sum has no rounding (Rump, Ogita and Oishi, Accurate floating-point summation, 2008).
    """
    parts = list[float]()
    room = max(v.size, 1).bit_length() + 1
    while v.size and (largest := float(np.abs(v).max())) != 0:
        exponent = math.frexp(largest)[1] + room if math.isfinite(largest) else 1024
        if exponent > 1022:  # not finite, or nearly so: the plain sum tells
            parts.append(float(v.sum()))
            break
        leading = (v + math.ldexp(1.0, exponent)) - math.ldexp(1.0, exponent)
        parts.append(float(leading.sum()))
        v = v - leading
    return apart(parts)


def apart(parts: list[float]) -> tuple[float, ...]:
    """Return :data:`KEPT` numbers without overlap that add up to ``parts``."""
    found = list[float]()
    for _ in range(KEPT):
        (one,) = added((parts + [-f for f in found],)) if all(map(math.isfinite, found)) else (0.0,)
        found.append(one)
    return tuple(found)
