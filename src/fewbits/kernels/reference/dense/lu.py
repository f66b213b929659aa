"""LU factorization of float32 and float64 with partial pivoting: the definition."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Factors = TypeVar("Factors", NDArray[np.float32], NDArray[np.float64])


def factorize_lu(a: Factors) -> tuple[Factors, NDArray[np.int64]]:
    """Return the factors of ``a``, (m, n), m >= n, and the exchanges of rows, (n,).

    The factors are U and, below the diagonal, L without its ones. The pivot of a column is the first of the
    largest magnitude, NaN above all; a column of zeros is left as it is. Faster versions sum the products of
    several columns before they subtract them; as long as nothing overflows or underflows, for all of them
    |P A - L U| <= n u / (1 - n u) |L| |U|, entry by entry, where u is 2^-24 for float32 and 2^-53 for float64
    (Higham, Accuracy and Stability of Numerical Algorithms, 2002, theorem 9.3).
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
