"""Residuals in about twice the precision of float64, and the magnitudes of a matrix: the definitions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

_LANES = 8  # sums side by side


def residuals(a: Doubles, x: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """Return b - A x and |A| |x| + |b|, each (k, m), of A, (m, n), x, (k, n), and b, (k, m).

    The residual is that of an arithmetic of about 106 bits, rounded once (Ogita, Rump and Oishi, Accurate Sum
    and Dot Product, 2005, algorithm 5.3): its error is at most 2^-53 of itself and n^2 2^-104 of the sizes,
    as long as nothing exceeds 2^996 and no product that counts lies below 2^-900.
    """
    found, sizes = np.empty(b.shape), np.empty(b.shape)
    for c in range(len(x)):
        found[c], sizes[c] = _residual(a, x[c], b[c])
    return found, sizes


def _residual(a: Doubles, x: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    m, n = a.shape
    steps = -(-n // _LANES)
    wide, long = np.zeros((m, _LANES * steps)), np.zeros(_LANES * steps)
    wide[:, :n], long[:n] = a, x
    high, low, sizes = (np.zeros((m, _LANES)) for _ in range(3))
    for step in range(steps):
        part = slice(_LANES * step, _LANES * (step + 1))
        product, error = _exact_product(wide[:, part], long[part])
        summed = high + product
        low += _rounded_off(high, product, summed) + error
        high = summed
        sizes += np.abs(product)
    total, off, size = b.copy(), np.zeros(m), np.abs(b)
    for lane in range(_LANES):
        summed = total - high[:, lane]
        off += _rounded_off(total, -high[:, lane], summed) - low[:, lane]
        total = summed
        size = size + sizes[:, lane]
    return total + off, size


def _rounded_off(a: Doubles, b: Doubles, summed: Doubles) -> Doubles:
    """Return what a + b rounds off (Knuth)."""
    of_b = summed - a
    return (a - (summed - of_b)) + (b - of_b)


def _exact_product(a: Doubles, x: Doubles) -> tuple[Doubles, Doubles]:
    """Return a x rounded, and what that rounds off (Dekker)."""
    (a_high, a_low), (x_high, x_low) = _halves(a), _halves(x)
    product = a * x
    return product, ((a_high * x_high - product) + a_high * x_low + a_low * x_high) + a_low * x_low


def _halves(x: Doubles) -> tuple[Doubles, Doubles]:
    far = x * (2.0**27 + 1)
    high = far - (far - x)
    return high, x - high


def extents(a: Doubles, powers: tuple[Doubles, Doubles] | None = None) -> tuple[Doubles, Doubles, Doubles]:
    """Return the largest magnitude and the sum of magnitudes of each row, and the largest of each column.

    Sums are those of eight lanes; a NaN is in no maximum, but in the sum of its row. With ``powers``, (m,)
    and (n,), they are those of R A C, whose diagonals these are.
    """
    m, n = a.shape
    if powers is not None:
        a = a * (powers[0][:, None] * powers[1])
    sizes = np.abs(a)
    whole = n - n % _LANES
    lanes = np.zeros((m, _LANES))
    for start in range(0, whole, _LANES):
        lanes += sizes[:, start : start + _LANES]
    sums = np.zeros(m)
    for part in (*lanes.T, *sizes[:, whole:].T):
        sums = sums + part
    there = np.where(np.isnan(sizes), 0.0, sizes)
    return there.max(1, initial=0.0), sums, there.max(0, initial=0.0)
