"""Vectors drawn side by side equal the definition: where a draw just suffices, and with tiny values."""

import numpy as np
import pytest
from numpy.typing import NDArray

from fewbits.formats import parse
from fewbits.kernels.bits.options import options
from fewbits.kernels.reference.values.stochastic import draws
from tests.native.definition import differences

SEED = 11
LINE = 1040  # whole runs of 32 values, and one of 16
# Elements with room for a draw below their last bit, with just that and without, in one binade and in many;
# each kind of scale.
DRAWN = (
    "mxfp8_e4m3",
    "mxfp8_e5m2",
    "fp8_e4m3_channel",
    "block(element=float(e=4,m=7),scale=e8m0,size=16)",
    "block(element=float(e=4,m=8),scale=e8m0,size=32)",
    "block(element=float(e=5,m=2),scale=fp32,size=32)",
    "block(element=fp8_e4m3,scale=fp8_e4m3,size=16,outer=fp32,outer_size=channel)",
    "block(element=float(e=2,m=6),scale=fp32,size=16)",
    "block(element=float(e=2,m=7),scale=fp32,size=16)",
    "mxfp4",
    "mxint8",
    "block(element=int(8),scale=e8m0,size=32)",
    "block(element=int(9),scale=e8m0,size=32)",
    "block(element=int(8),scale=fp32,size=24)",
    "block(element=int(7,coding=symmetric),scale=fp32,size=16)",
    "mx9",
    "mx6",
    "bdr(m=8,d1=8,k1=16,d2=1,k2=2)",
)

# The elements, with the bits of a significand behind its point and exponents from the least
# to the largest that they have, or of pairs those of one kind, where blocks have scales of one.
BOUNDS = (
    ("mxfp8_e4m3", 3, -6, 8),
    ("mxfp8_e5m2", 2, -14, 15),
    ("mxfp4", 1, 0, 2),
    ("block(element=float(e=4,m=6),scale=e8m0,size=32)", 6, -6, 8),
    ("block(element=float(e=4,m=7),scale=e8m0,size=32)", 7, -6, 8),
    ("block(element=float(e=4,m=6),scale=fp32,size=16)", 6, -6, 8),
    ("float(e=4,m=6,special=ieee)", 6, -6, 7),
    ("mxint8", 6, 0, 0),
    ("block(element=int(8),scale=e8m0,size=32)", 6, 6, 6),
    ("block(element=int(9),scale=e8m0,size=32)", 7, 7, 7),
    ("mx9", 6, 0, 0),
    ("mx9", 6, -1, 0),
    ("mx4", 1, 0, 0),
    ("mx4", 1, -1, 0),
)


def at_bounds(mantissa_bits: int, emin: int, binades: int) -> NDArray[np.float32]:
    """Return values whose dropped bits and draw reach one or miss it by one, with bits below a draw."""
    n = 16 * LINE
    rng = np.random.default_rng(5)
    drawn = draws(np.arange(n), SEED, 16).astype(np.int64)
    rest = np.minimum(65536 - drawn - rng.integers(0, 2, n), 65535)
    # Below emin, in one value of 16, the leading bit of the significand is missing, as in float32 itself.
    tiny = rng.integers(0, 16, n) == 0
    whole = rng.integers(0, 1 << mantissa_bits, n) + np.where(tiny, 0, 1 << mantissa_bits)
    exponent = emin + np.where(tiny, 0, rng.integers(0, binades, n))
    below = rng.integers(0, 2, n) * (1 - 2.0 ** (mantissa_bits - 7)) if mantissa_bits < 7 else 0
    steps = whole + (rest + below) / 65536
    return (steps * np.exp2(exponent - mantissa_bits) * rng.choice([-1, 1], n)).astype(np.float32)


@pytest.mark.parametrize(("text", "bits", "emin", "emax"), BOUNDS)
def test_a_draw_that_just_suffices_rounds_up(text: str, bits: int, emin: int, emax: int) -> None:
    fmt = parse(text)
    x = at_bounds(bits, emin, max(emax - emin, 1))
    x[::16] = 2.0**emax  # so that the scale of each block is one
    chosen = options(fmt, rounding="stochastic", seed=SEED)
    assert differences(x.reshape(16, LINE), fmt, 1, chosen) == []


@pytest.mark.parametrize("text", DRAWN)
@pytest.mark.parametrize("most", [0, 1, 40])
def test_tiny_values_among_others_are_drawn_as_multiples_of_the_smallest(text: str, most: int) -> None:
    """`most` of a thousand values lie below the smallest normal one, or are zero."""
    fmt = parse(text)
    rng = np.random.default_rng(most)
    x = rng.uniform(0.5, 1.9, (8, LINE)) * rng.choice([-1, 1], (8, LINE))
    tiny = rng.integers(0, 1000, x.shape) < most
    x = np.where(tiny, x * np.exp2(rng.integers(-45, -8, x.shape)) * rng.integers(0, 4, x.shape), x)
    chosen = options(fmt, rounding="stochastic", seed=SEED)
    assert differences(x.astype(np.float32), fmt, 1, chosen) == []
    assert differences((x * 2.0**-120).astype(np.float32), fmt, 1, chosen) == []
