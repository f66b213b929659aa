"""Initial values that can be had again; kernels/reference/uniform.py defines them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.kernels.native.isa import active_isa


def uniform(seed: int, position: int, n: int, unit: float, threads: int) -> NDArray[np.float32]:
    """Return the values of ``n`` positions from ``position`` on."""
    active_isa()
    out = np.empty(n, np.float32)
    _native.uniform_values(seed, position, unit, out, threads)
    return out
