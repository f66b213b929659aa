"""Products without multiplications (Mogami, Deep Neural Network Training Without Multiplications, 2020)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MAGNITUDE = np.uint32(0x7FFFFFFF)
_ONE = np.uint32(0x3F800000)
_SMALLEST = np.uint32(0x00800000)
_LARGEST = np.uint32(0x7F7FFFFF)


def times(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return ``a * b`` of broadcastable arrays by one integer sum of their bit patterns.

    The magnitude is the float whose bits are int(|a|) + int(|b|) - int(1.0), too small by up to a ninth of
    the product (Mitchell, Computer Multiplication and Division Using Binary Logarithms, 1962). What would
    fall below the smallest normal number is zero, and what exceeds the largest is the largest. What is not
    finite is multiplied as floats are.
    """
    x, y = a.view(np.uint32), b.view(np.uint32)
    total = (x & _MAGNITUDE) + (y & _MAGNITUDE)  # below 2^32
    there = (total >= _ONE + _SMALLEST) & (x & _MAGNITUDE != 0) & (y & _MAGNITUDE != 0)
    magnitude = np.minimum(total - _ONE, _LARGEST)
    approximation = np.where(there, magnitude | ((x ^ y) & ~_MAGNITUDE), np.uint32(0)).view(np.float32)
    finite = ((x & _MAGNITUDE) <= _LARGEST) & ((y & _MAGNITUDE) <= _LARGEST)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return np.where(finite, approximation, a * b)


def product(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return ``a @ b``, (m, k) times (k, n): products by :func:`times`, float32 sums in the order of k."""
    y = np.zeros((a.shape[0], b.shape[1]), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # sums may leave the range, as floats do
        for i in range(a.shape[1]):
            y += times(np.ascontiguousarray(a[:, i : i + 1]), np.ascontiguousarray(b[i : i + 1]))
    return y
