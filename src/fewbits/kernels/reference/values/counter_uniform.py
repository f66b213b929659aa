"""Reproducible initial values: the definition. One rounding each, equal on every device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.reference.values.stochastic import draws


def counter_uniform(seed: int, position: int, n: int, unit: float) -> NDArray[np.float32]:
    """Return the values of ``n`` positions from ``position`` on.

    The upper 24 bits of a draw give an odd integer of magnitude below 2^24, which float32 holds exactly;
    times ``unit`` it is uniform between -2^24 and 2^24 units.
    """
    drawn = draws(np.arange(position, position + n), seed) >> np.uint32(8)
    odd = 2 * drawn.astype(np.int32) + 1 - 2**24
    return odd.astype(np.float32) * np.float32(unit)
