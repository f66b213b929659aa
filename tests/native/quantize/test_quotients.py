"""Values over scales that are numbers equal the definition; two values alone without a quotient, too."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from fewbits import kernels
from fewbits.formats import parse
from fewbits.kernels.bits.options import options
from fewbits.kernels.reference.values.stochastic import draws
from tests.native.definition import differences

# Blocks of both usual sizes, of others, and lines; few bits and many; steps of any size.
SCALED = (
    "block(element=int(4,coding=symmetric),scale=fp32,size=16)",
    "block(element=int(8),scale=fp32,size=32)",
    "block(element=int(16,coding=symmetric),scale=fp32,size=24)",
    "block(element=int(16,coding=symmetric),scale=fp32,size=32)",
    "block(element=float(e=5,m=2),scale=fp32,size=32)",
    "block(element=float(e=6,m=9),scale=fp32,size=16)",
    "block(element=fp4_e2m1,scale=fp8_e4m3,size=16)",
    "block(element=int(8),scale=fp32,size=96)",
    "int8_channel",
    "int8_256",
    "vsq4",
    "nvfp4",
)
BINARY = (
    "binary_channel",
    "binary_tensor",
    "block(element=binary,scale=fp32,size=12)",
    "block(element=binary,scale=e8m0,size=32)",
    "block(element=binary,scale=fp8_e4m3,size=16)",
    "block(element=binary,scale=fp8_e4m3,size=16,outer=fp32,outer_size=channel)",
)


def quotients_near_steps(seed: int) -> NDArray[np.float32]:
    """Lines whose values over the scale lie halfway between two steps, or a few last places beside that."""
    rng = np.random.default_rng(seed)
    halves = rng.integers(-255, 256, (6, 2080)) / 2
    x = (halves * rng.uniform(0.5, 2, (6, 1))).astype(np.float32)
    places = x.view(np.int32)
    places += np.where(x != 0, rng.integers(-2, 3, x.shape), 0).astype(np.int32)
    return x


def wide_scales(seed: int) -> NDArray[np.float32]:
    """Lines of blocks from the smallest values of float32 to the largest, whose own values differ as much."""
    rng = np.random.default_rng(seed)
    blocks = np.exp2(rng.integers(-140, 127, (4, 65))).repeat(32, axis=1)
    x = rng.standard_normal((4, 2080)) * blocks * np.exp2(rng.integers(-60, 1, (4, 2080)))
    most = float(np.finfo(np.float32).max)
    return np.clip(x, -most, most).astype(np.float32)


@pytest.mark.parametrize("text", SCALED + BINARY)
@pytest.mark.parametrize("values", [quotients_near_steps, wide_scales])
def test_what_is_divided_equals_the_definition(
    text: str, values: Callable[[int], NDArray[np.float32]]
) -> None:
    fmt = parse(text)
    for choice in ({}, {"rounding": "stochastic"}, {"rounding": "stochastic", "random_bits": 32}):
        chosen = options(fmt, **choice, **({"seed": 7} if choice else {}))
        for seed in range(3):
            assert differences(values(seed), fmt, 1, chosen) == [], (choice, seed)


@pytest.mark.parametrize("text", BINARY)
@pytest.mark.parametrize("largest", [1.0, 1.5, 2.0, 3.0, 2.0**40, 2.0**120, 2.0**-100])
def test_a_negative_that_vanishes_over_its_scale_becomes_the_upper_value(text: str, largest: float) -> None:
    fmt = parse(text)
    smallest = np.arange(-64, 64, dtype=np.float32) * np.float32(2.0**-149)
    x = np.concatenate([smallest, smallest * np.float32(2.0**20), [largest, -largest, 0.0, -0.0]]).astype(
        np.float32
    )
    for rounding in ("nearest_even", "nearest_away", "toward_zero", "up", "down", "stochastic"):
        chosen = options(fmt, rounding=rounding, **({"seed": 3} if rounding == "stochastic" else {}))
        for times in (5, 8):  # in all, whole words of 32 signs or not
            assert differences(np.tile(x, (2, times)), fmt, 1, chosen) == [], rounding


@pytest.mark.parametrize("size", ["channel", "12"])
def test_two_values_are_drawn_at_their_bounds_and_a_last_place_beside_them(size: str) -> None:
    """One is 1 with a draw from 1 - draw / 2^15 on; at a bound of zero float64 takes -2^-54 for it, too."""
    fmt = parse(f"block(element=binary,scale=fp32,size={size})")
    n = 1 << 17
    drawn = draws(np.arange(n), 11, 16).astype(np.int64)
    assert (drawn == 1 << 15).any()
    bound = ((32768 - drawn) / 32768).astype(np.float32)
    bound[drawn == 1 << 15] = np.float32(-(2.0**-54))
    for beside in (-np.inf, 0.0, np.inf):
        x = bound if beside == 0.0 else np.nextafter(bound, np.float32(beside))
        x[::12] = 1.0  # every block and the line have the scale one
        chosen = options(fmt, rounding="stochastic", random_bits=16, seed=11)
        assert differences(x.reshape(1, n), fmt, 1, chosen) == []


def test_the_signs_of_the_inputs_alone_would_be_wrong() -> None:
    fmt = parse("binary_channel")
    x = np.full((1, 32), 4.0, np.float32)
    x[0, 1], x[0, 2] = -(2.0**-149), -(2.0**-126)
    rounded = np.asarray(kernels.fake_quantize(x, fmt, 1, options(fmt)))
    assert rounded[0, 1] == rounded[0, 0] > 0 > rounded[0, 2]


@pytest.mark.parametrize("scale", ["fp32", "e8m0"])
def test_draws_beyond_the_limit_of_one_sign_do_not_overflow(scale: str) -> None:
    """The limits of two's complement differ: what is drawn may lie beyond 32767, up to 32768."""
    rng = np.random.default_rng(3)
    x = (rng.integers(0, 2, (2, 2080)) * 2 - 1) * (np.float32(32768) - rng.integers(1, 512, (2, 2080)) / 512)
    x[:, ::16] = -32768 if scale == "fp32" else -32767.75
    for size in (16, 24, 32):
        fmt = parse(f"block(element=int(16),scale={scale},size={size})")
        for bits in (16, 32):
            chosen = options(fmt, rounding="stochastic", random_bits=bits, seed=11)
            assert differences(x.astype(np.float32), fmt, 1, chosen) == [], (size, bits)


@pytest.mark.parametrize("size", [24, 32])
def test_draws_at_the_largest_of_sixteen_bits_do_not_overflow(size: int) -> None:
    fmt = parse(f"block(element=int(16,coding=symmetric),scale=fp32,size={size})")
    x = np.where(np.arange(96 * 40) % 3, 1, -1).reshape(2, -1) * np.float32(32767)
    x = x.astype(np.float32) - np.float32(0.5) * (np.arange(x.size).reshape(x.shape) % 5 == 4)
    for bits in (16, 32):
        chosen = options(fmt, rounding="stochastic", random_bits=bits, seed=11)
        assert differences(x.astype(np.float32), fmt, 1, chosen) == []


@pytest.mark.parametrize(
    "element", ["fixed(8,frac=30)", "fixed(16,frac=14)", "fixed(8,frac=-3,coding=symmetric)"]
)
@pytest.mark.parametrize("size", [16, 32, 48])
def test_steps_times_scales_beyond_float32_are_drawn_as_products_of_values(element: str, size: int) -> None:
    """The step times the scale of a block may be less than float32 has, or more, while values are not."""
    fmt = parse(f"block(element={element},scale=e8m0,size={size})")
    rng = np.random.default_rng(5)
    blocks = np.exp2(np.r_[-150:-110, 100:127:3].astype(np.float64))
    x = (rng.uniform(-1.9, 1.9, (blocks.size, 96)) * blocks[:, None]).astype(np.float32)
    chosen = options(fmt, rounding="stochastic", seed=11)
    assert differences(x, fmt, 1, chosen) == []


@pytest.mark.parametrize(
    ("element", "choice"),
    [
        ("posit8_1", {}),
        ("posit16_2", {"rounding": "stochastic"}),
        ("posit8_1", {"nonfinite": "element"}),
        ("hfp8_e5m2", {"rounding": "toward_zero", "overflow": "nan"}),
        ("hfp8_e5m2", {"rounding": "up", "overflow": "inf", "nonfinite": "element"}),
    ],
)
@pytest.mark.parametrize("size", [7, 32])
def test_a_number_over_its_scale_beyond_float32_is_no_infinity(
    element: str, choice: dict[str, str], size: int
) -> None:
    fmt = parse(f"block(element={element},scale=exponent(3,bias=127),size={size})")
    x = np.float32([[1e20, -1e20, 3e38, -3e38, 1e-38, np.inf, -np.inf, np.nan] * 8, [1e6, -1e38, 0, 1] * 16])
    chosen = options(fmt, **choice, **({"seed": 7} if choice.get("rounding") == "stochastic" else {}))
    assert differences(x[:, : None if choice.get("nonfinite") else 5], fmt, 1, chosen) == []
    assert differences(x[1:], fmt, 1, chosen) == []
