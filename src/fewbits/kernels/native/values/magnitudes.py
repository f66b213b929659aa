"""The largest and the smallest magnitude of an array, in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.kernels.native.dispatch.isa import active_isa
from fewbits.kernels.native.jobs.geometry import aligned, geometry, is_dense, one_line

Array = NDArray[Any]


def magnitudes(x: Array, *, threads: int) -> tuple[float, float, bool]:
    """Return the largest finite and the smallest nonzero magnitude, and whether x holds NaN or infinity.

    The smallest is infinity where nothing is above zero.

    Raises:
        ArgumentError: ``FEWBITS_ISA`` names an instruction set that cannot run.
    """
    active_isa()
    x = aligned(x)
    where = one_line(x.size) if is_dense(x) else geometry(x, x.ndim - 1)
    if where is None:
        x = np.ascontiguousarray(x)
        where = one_line(x.size)
    return _native.magnitudes(where, x, threads)
