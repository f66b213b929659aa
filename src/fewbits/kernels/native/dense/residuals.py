"""Residuals and magnitudes of dense matrices; kernels/reference/dense/residuals.py defines them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.kernels.native.dispatch.isa import active_isa

Doubles = NDArray[np.float64]


def residuals(a: Doubles, x: Doubles, b: Doubles, threads: int) -> tuple[Doubles, Doubles]:
    """Return b - A x and |A| |x| + |b|, each (k, m), of A, (m, n), x, (k, n), and b, (k, m)."""
    active_isa()
    r, sizes = np.empty(b.shape), np.empty(b.shape)
    _native.residuals(a, x, b, r, sizes, threads)
    return r, sizes


def extents(
    a: Doubles,
    threads: int,
    single: NDArray[np.float32] | None = None,
    powers: tuple[Doubles, Doubles] | None = None,
) -> tuple[Doubles, Doubles, Doubles]:
    """Return the largest magnitude and the sum of magnitudes of each row, and the largest of each column.

    ``single``, (m, n), takes the values as float32, since A is being read. With ``powers``, (m,) and (n,),
    all of that is of R A C.
    """
    active_isa()
    m, n = a.shape
    largest, sums, columns = np.empty(m), np.empty(m), np.empty(n)
    left, right = powers or (None, None)
    _native.extents(a, largest, sums, columns, single, left, right, threads)
    return largest, sums, columns
