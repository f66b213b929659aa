"""Products of ternary or binary weights with integers of few bits: the definition.

A plane of integers is one bit of each. With planes L and H of ternary weights, which are L - 2 H, and planes
X_j of x, each worth c_j, a product is whole and is found by counting bits (Rastegari et al., XNOR-Net, ECCV
2016, section 3.2; Zhou et al., DoReFa-Net, 2016, equation 3):

    x . w = sum over j of c_j (|L & X_j| - 2 |H & X_j|)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Bits = NDArray[np.bool_]


def product(
    x: Integers,
    x_scales: NDArray[np.float32],
    w: Integers,
    w_scales: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return the (batch, lines) products of integers times their scales, each rounding named by a line.

    Args:
        x: (batch, n) integers of at most eight bits.
        x_scales: (batch,).
        w: (lines, n) integers from -2 to 1.
        w_scales: (lines,), or (1,) for all lines; ones where the format has none.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        exact = (x @ w.T).astype(np.float32)  # a whole number, rounded beyond 2^24
        scale = w_scales[None, :] * x_scales[:, None]  # rounded
        found: NDArray[np.float32] = exact * scale  # rounded
    return found


def planes(values: Integers, bits: int) -> Bits:
    """Return the planes of integers, (bits, *values.shape): plane j is bit j of two's complement."""
    return np.stack([(values >> j & 1).astype(np.bool_) for j in range(bits)])


def worth(bits: int, is_signed: bool) -> Integers:
    """Return what each plane is worth: powers of two, the highest negative in two's complement."""
    found = 2 ** np.arange(bits, dtype=np.int64)
    if is_signed:
        found[-1] *= -1
    return found


def counted(x: Integers, bits: int, is_signed: bool, w: Integers) -> Integers:
    """Return ``x @ w.T`` by ANDs of planes and counts of their ones.

    Args:
        x: (batch, n) integers of ``bits`` bits, in two's complement if ``is_signed``.
        bits: 1 to 8.
        is_signed: whether x has negative values.
        w: (lines, n) integers from -2 to 1.
    """
    total = np.zeros((len(x), len(w)), np.int64)
    for of_w, plane_of_w in zip(worth(2, is_signed=True), planes(w, 2), strict=True):
        for of_x, plane_of_x in zip(worth(bits, is_signed), planes(x, bits), strict=True):
            shared = plane_of_x[:, None, :] & plane_of_w[None, :, :]
            total += of_w * of_x * np.count_nonzero(shared, axis=-1)
    return total
