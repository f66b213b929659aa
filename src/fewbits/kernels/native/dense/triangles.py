"""Triangular systems of float32 or float64 factors in double precision, by the native kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.kernels.native.dispatch.isa import active_isa


def substitute(
    t: NDArray[np.float32] | NDArray[np.float64],
    x: NDArray[np.float64],
    threads: int,
    *,
    upper: bool,
    unit: bool = False,
    transposed: bool = False,
) -> None:
    """Solve T x = b, or its transpose's, for the rows of x, (k, n), which are b and are overwritten.

    T is the lower or upper triangle of ``t``, (n, n), with ones on its diagonal where ``unit``.
    """
    active_isa()
    _native.substitute(t, x, upper, unit, transposed, threads)
