"""LU factorization of float32; kernels/reference/dense/lu.py defines it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.kernels.bits.memory import empty_aligned
from fewbits.kernels.native.dispatch.isa import active_isa


def factorize_lu(a: NDArray[np.float32], threads: int) -> NDArray[np.int64]:
    """Put the factors of ``a``, (m, n), m >= n, in its place and return the exchanges of rows, (n,)."""
    active_isa()
    m, n = a.shape
    exchanges = np.empty(n, np.int64)
    workspace = empty_aligned((_native.lu_workspace(m, n, threads),), np.float32)
    _native.factorize_lu(a, exchanges, workspace, threads)
    return exchanges
