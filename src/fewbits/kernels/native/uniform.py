"""Initial values that can be had again; kernels/reference/uniform.py defines them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.kernels.native.isa import active_isa


def uniform(seed: int, position: int, unit: float, out: NDArray[np.float32], threads: int) -> None:
    """Write the values of the positions from ``position`` on into ``out``."""
    active_isa()
    _native.uniform_values(seed, position, unit, out, threads)
