"""Reproducible initial values; kernels/reference/values/counter_uniform.py defines them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.kernels.native.dispatch.isa import active_isa


def counter_uniform(
    seed: int, position: int, n: int, unit: float, threads: int, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Return the values of ``n`` positions from ``position`` on; in ``out``, if given."""
    active_isa()
    found = np.empty(n, np.float32) if out is None else out
    _native.counter_uniform(seed, position, unit, found, threads)
    return found
