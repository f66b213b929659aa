"""Inputs on which a fast kernel is most likely to differ from the definition."""

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]

_FRACTIONS = (0, 1, 0x1FFFFF, 0x200000, 0x3FFFFF, 0x400000, 0x400001, 0x5FFFFF, 0x600000, 0x7FFFFE, 0x7FFFFF)


def every_exponent() -> Values:
    """Both signs of every exponent, with the fractions around its ties; infinities and NaN included."""
    exponents = np.arange(256, dtype=np.uint32)[:, None] << 23
    magnitudes = (exponents | np.array(_FRACTIONS, np.uint32)).ravel()
    return np.concatenate([magnitudes, magnitudes | 0x80000000]).view(np.float32)


def every_bfloat16() -> Values:
    """All 2^16 of them."""
    return (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32)


def blocks_of_every_scale() -> Values:
    """Gaussian blocks with largest magnitudes from subnormals to the largest float, and zeros in them."""
    rng = np.random.default_rng(1)
    scales = np.exp2(np.arange(-150.0, 128.0).repeat(4))
    with np.errstate(over="ignore"):
        blocks = (rng.standard_normal((scales.size, 32)) * scales[:, None] * 0.25).astype(np.float32)
    blocks[rng.random(blocks.shape) < 0.05] = 0
    blocks[rng.random(blocks.shape) < 0.05] = -0.0
    blocks[::29] *= 0
    return blocks.ravel()


def awkward(finite: bool) -> Values:
    """All of the above and random bit patterns, in order and shuffled, so that blocks mix scales.

    With ``finite``, one stands for each NaN and infinity.
    """
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 2**32, 4096, np.uint32).view(np.float32)
    parts = np.concatenate([every_exponent(), blocks_of_every_scale(), noise])
    whole = np.concatenate([parts, every_bfloat16(), rng.permutation(parts)])
    return np.where(np.isfinite(whole), whole, np.float32(1)) if finite else whole


def bits(values: Values) -> NDArray[np.uint32]:
    """Bit patterns, so that zeros differ by sign; every NaN is the same."""
    return np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32))
