"""Triangular systems of float32 factors in double precision: the definition."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_LANES = 16  # sums side by side


def substitute(
    t: NDArray[np.float32],
    x: NDArray[np.float64],
    *,
    upper: bool,
    unit: bool = False,
    transposed: bool = False,
) -> NDArray[np.float64]:
    """Return the solutions of T x = b, or of its transpose's, for the rows of x, (k, n).

    T is the lower or upper triangle of ``t``, (n, n), with ones on its diagonal where ``unit``. T is read by
    rows: the system itself by inner products, its transpose by subtracting multiples of rows.
    """
    n = len(t)
    found = x.copy()
    for i in range(n) if upper == transposed else reversed(range(n)):
        part = slice(i + 1, n) if upper else slice(0, i)
        pivot = np.float64(1 if unit else t[i, i])
        row = t[i, part].astype(np.float64)
        if transposed:
            found[:, i] /= pivot
            found[:, part] -= row * found[:, i, None]
        else:
            found[:, i] = (found[:, i] - _dots(row, found[:, part])) / pivot
    return found


def _dots(row: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the inner products of a row with those of x: lanes of sums, then the two halves of them."""
    lanes = np.zeros((len(x), _LANES))
    for start in range(0, len(row), _LANES):
        products = row[start : start + _LANES] * x[:, start : start + _LANES]
        lanes[:, : products.shape[1]] += products
    while lanes.shape[1] > 1:
        left, right = np.split(lanes, 2, 1)
        lanes = left + right
    return lanes[:, 0]
