"""Triangular systems of float32 or float64 factors in double precision: the definition."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_LANES = 16  # sums side by side
_BLOCK = 256  # unknowns that are solved from each other, after all solved before were subtracted


def substitute(
    t: NDArray[np.float32] | NDArray[np.float64],
    x: NDArray[np.float64],
    *,
    upper: bool,
    unit: bool = False,
    transposed: bool = False,
) -> NDArray[np.float64]:
    """Return the solutions of T x = b, or of its transpose's, for the rows of x, (k, n).

    T is the lower or upper triangle of ``t``, (n, n), with ones on its diagonal where ``unit``. T is read by
    rows: the system itself by inner products, with the unknowns solved in blocks before and with those of the
    row's own block, its transpose by subtracting multiples of rows.
    """
    n = len(t)
    found = x.copy()
    for i in range(n) if upper == transposed else reversed(range(n)):
        part = slice(i + 1, n) if upper else slice(0, i)
        pivot = np.float64(1 if unit else t[i, i])
        row = t[i].astype(np.float64)
        if transposed:
            found[:, i] /= pivot
            found[:, part] -= row[part] * found[:, i, None]
            continue
        begin = i // _BLOCK * _BLOCK
        end = min(begin + _BLOCK, n)
        before, own = (slice(end, n), slice(i + 1, end)) if upper else (slice(0, begin), slice(begin, i))
        for solved in (before, own):
            found[:, i] -= _dots(row[solved], found[:, solved])
        found[:, i] /= pivot
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
