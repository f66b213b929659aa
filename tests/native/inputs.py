"""Inputs on which a fast kernel is most likely to differ from the definition."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.formats import Element, Format
from fewbits.kernels.bits.reals import widened
from tests import cases
from tests.kernels.reference.values.test_scale_rules import around_thresholds

Values = NDArray[np.float32]

LINE = 97  # no block size in the catalogue divides it: every line ends in a partial block

_FRACTIONS = (0, 1, 0x1FFFFF, 0x200000, 0x3FFFFF, 0x400000, 0x400001, 0x5FFFFF, 0x600000, 0x7FFFFE, 0x7FFFFF)


def every_exponent() -> Values:
    """Both signs of every exponent, with the fractions around its ties; infinities and NaN included."""
    exponents = np.arange(256, dtype=np.uint32)[:, None] << 23
    magnitudes = (exponents | np.array(_FRACTIONS, np.uint32)).ravel()
    return np.concatenate([magnitudes, magnitudes | 0x80000000]).view(np.float32)


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


@lru_cache(maxsize=1)
def awkward() -> Values:
    """All of the above and random bit patterns, in order and shuffled, so that blocks mix scales."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 2**32, 4096, np.uint32).view(np.float32)
    parts = np.concatenate([every_exponent(), blocks_of_every_scale(), noise])
    return np.concatenate([parts, rng.permutation(parts)])


@lru_cache(maxsize=8)
def telling(element: Element) -> Values:
    """Return the rounding boundaries of an element, at most 30000 of them."""
    return cases.telling(element)[:30_000] if element.bits <= 16 else cases.every_exponent(30_000)


@lru_cache(maxsize=8)
def telling_blocks(element: Element) -> Values:
    """Blocks on the boundaries of the element times powers of two, and on the thresholds of scale rules."""
    rng = np.random.default_rng(3)
    x = telling(element)
    x = np.resize(x[np.abs(x.astype(np.float64)) <= 2 * element.max], 12_000)
    powers = np.exp2(np.repeat(rng.integers(-140, 120, 250), 48))
    tops = np.resize(around_thresholds(element), 16_000).reshape(-1, 1)
    with np.errstate(over="ignore"):
        on_boundaries = (x * powers).astype(np.float32)
        below = (tops * rng.uniform(-1, 1, (tops.size, 3))).astype(np.float32)
    return np.concatenate([on_boundaries, np.concatenate([tops, below], axis=1).repeat(2).ravel()])


@lru_cache(maxsize=4)
def single(fmt: Format, thorough: bool) -> Values:
    """Return float32 lines for a format: all there is, or a fair sample of it."""
    element = fmt.element
    own = telling(element) if isinstance(fmt, Element) else telling_blocks(element)
    if thorough:
        return in_lines(np.concatenate([own, awkward()]))
    # Neighbours stay together, so that blocks stay blocks.
    pieces = in_lines(np.concatenate([own, awkward()]))
    return np.ascontiguousarray(pieces[np.random.default_rng(5).permutation(len(pieces))[:200]])


@lru_cache(maxsize=4)
def every_half(dtype: Any) -> NDArray[Any]:
    """Return all 2^16 values of float16, or of bfloat16 as its bits, in order and shuffled, in lines."""
    codes = np.arange(2**16, dtype=np.uint16)
    return in_lines(np.concatenate([codes, np.random.default_rng(0).permutation(codes)]).view(dtype))


def in_lines(x: NDArray[Any]) -> NDArray[Any]:
    """Return ``x``, its end filled up from its beginning, in lines of 97."""
    return np.resize(x, (-(-x.size // LINE), LINE))


def finite(x: NDArray[Any]) -> NDArray[Any]:
    """Return ``x`` with ones in place of each NaN and infinity."""
    one = x.dtype.type(0x3F80 if x.dtype == np.uint16 else 1)
    return np.where(np.isfinite(widened(x)), x, one)
