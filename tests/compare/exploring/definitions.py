"""Rounding in NumPy, written from the papers and from nothing of fewbits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]


def exponent(x: Any) -> Any:
    """Floor of log2 of magnitudes; of zero, something very small."""
    return np.where(x == 0, -1000, np.frexp(x)[1] - 1)


def bdr(x: Reals, m: int, k1: int, d2: int, k2: int) -> Reals:
    """With Shared Microexponents, section 3: E1 of the block, a shift of up to 2^d2 - 1 of a sub-block."""
    blocks = x.reshape(-1, k1 // k2, k2)
    e1 = exponent(np.abs(blocks).max(axis=(1, 2), keepdims=True))
    e2 = exponent(np.abs(blocks).max(axis=2, keepdims=True))
    step = 2.0 ** (e1 - np.minimum(e1 - e2, 2**d2 - 1) - (m - 1))
    most = 2**m - 1
    return (np.clip(np.round(blocks / step), -most, most) * step).reshape(x.shape)


def power_of_two_block(x: Reals, values: Reals, emax: int, size: int) -> Reals:
    """OCP MX, section 6.3: the scale is 2^(floor(log2 amax) - emax), elements round to the nearest value."""
    blocks = x.reshape(-1, size)
    scale = 2.0 ** (exponent(np.abs(blocks).max(axis=1, keepdims=True)) - emax)
    return (nearest(blocks / scale, values) * scale).reshape(x.shape)


def real_block(x: Reals, values: Reals, size: int) -> Reals:
    """A float32 scale: the largest magnitude of a block over the largest value."""
    blocks = x.reshape(-1, size)
    amax = np.abs(blocks).max(axis=1, keepdims=True)
    scale = (amax.astype(np.float32) / np.float32(values.max())).astype(np.float64)
    return (nearest(blocks / scale, values) * scale).reshape(x.shape)


def nearest(x: Reals, values: Reals) -> Reals:
    """The nearest of some values; what no random number meets, a tie, is not decided here."""
    return values[np.abs(x[..., None] - values).argmin(axis=-1)]


def qsnr(x: Reals, y: Reals) -> float:
    """Section 4.1: -10 log10 of the expected noise over the expected signal."""
    return float(-10 * np.log10(np.square(y - x).mean() / np.square(x).mean()))


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E2M1 = np.concatenate([-E2M1[:0:-1], E2M1])
E2M3 = np.array([m / 8 for m in range(8)] + [(1 + m / 8) * 2**e for e in range(3) for m in range(8)])
E2M3 = np.concatenate([-E2M3[:0:-1], E2M3])
INT4 = np.arange(-7.0, 8.0)
INT6 = np.arange(-31.0, 32.0)
TABLE = np.array([-1, -0.5, -0.125, 0, 0.25, 0.625, 1])
