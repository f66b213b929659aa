"""LU factorization of float32 and float64; kernels/reference/dense/lu.py defines it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.kernels.native.dispatch.isa import active_isa

Reals = NDArray[np.float32] | NDArray[np.float64]


def factorize_lu(a: Reals, threads: int) -> NDArray[np.int64]:
    """Put the factors of ``a``, (m, n), m >= n, in its place and return the exchanges of rows, (n,)."""
    active_isa()
    exchanges = np.empty(a.shape[1], np.int64)
    _native.factorize_lu(a, exchanges, threads)
    return exchanges


def exchange_rows(a: NDArray[np.float32], exchanges: NDArray[np.int64], threads: int) -> None:
    """Have row i of ``a``, (m, n), and row ``exchanges[i]`` change places, one after the other."""
    _native.exchange_rows(a, exchanges, threads)
