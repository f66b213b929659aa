"""LU factorization of float32 with partial pivoting: the definition."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def factorize_lu(a: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the factors of ``a``, (m, n), m >= n, and the exchanges of rows, (n,).

    The factors are U and, below the diagonal, L without its ones. The pivot of a column is the first of the
    largest magnitude, NaN above all; a column of zeros is left as it is. Faster versions sum the products of
    several columns before they subtract them; for all of them |P A - L U| <= n 2^-24 / (1 - n 2^-24) |L| |U|
    (Higham, Accuracy and Stability of Numerical Algorithms, 2002, theorem 9.3), entry by entry, as long as
    nothing overflows or underflows.
    """
    factors = a.copy()
    n = factors.shape[1]
    exchanges = np.empty(n, np.int64)
    for j in range(n):
        magnitudes = np.abs(factors[j:, j])
        place = j + int(magnitudes.argmax())  # the first NaN if there is one
        exchanges[j] = place
        factors[[j, place]] = factors[[place, j]]
        if factors[j, j] != 0:
            factors[j + 1 :, j] /= factors[j, j]
        factors[j + 1 :, j + 1 :] -= factors[j + 1 :, j, None] * factors[j, j + 1 :]
    return factors, exchanges
