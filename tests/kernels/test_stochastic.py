"""Stochastic rounding: repeatable, the same whatever the order of work, right on average."""

from fractions import Fraction

import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits.errors import ArgumentError
from fewbits.formats import Element, Exponent, values
from fewbits.kernels.reference.values.stochastic import draws
from tests import cases

FORMATS = tuple(f for f in cases.FORMATS if not isinstance(f, Exponent))


def normal(shape: tuple[int, ...], fmt: cases.Format, seed: int = 0) -> cases.Singles:
    """Return values that suit a format."""
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return np.abs(x) if isinstance(fmt, Element) and fmt.min >= 0 else x


@pytest.mark.parametrize("fmt", FORMATS, ids=cases.label)
def test_a_seed_gives_the_same_bits_again_and_another_seed_gives_others(fmt: cases.Format) -> None:
    x = normal((40, 50), fmt)
    one = fb.fake_quantize(x, fmt, rounding="stochastic", generator=1)
    assert np.array_equal(one, fb.fake_quantize(x, fmt, rounding="stochastic", generator=1))
    assert np.array_equal(one, fb.quantize(x, fmt, rounding="stochastic", generator=1).dequantize())
    if str(fmt) != "fp32":  # float32 has nothing to round
        assert not np.array_equal(one, fb.fake_quantize(x, fmt, rounding="stochastic", generator=2))


@pytest.mark.parametrize("fmt", [f for f in FORMATS if isinstance(f, Element)], ids=cases.label)
def test_the_draw_of_a_value_depends_on_its_place_alone_not_on_the_axis(fmt: Element) -> None:
    x = normal((6, 7, 8), fmt)
    found = [fb.fake_quantize(x, fmt, axis=a, rounding="stochastic", generator=9) for a in (0, 1, 2)]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    strided = np.asfortranarray(x)
    assert np.array_equal(found[0], fb.fake_quantize(strided, fmt, rounding="stochastic", generator=9))
    as_torch = fb.fake_quantize(torch.from_numpy(x), fmt, rounding="stochastic", generator=9)
    assert np.array_equal(found[0], as_torch.numpy())


@pytest.mark.parametrize("fmt", FORMATS, ids=cases.label)
def test_the_number_of_threads_does_not_show(fmt: cases.Format) -> None:
    x = normal((64, 96), fmt)
    threads = torch.get_num_threads()
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(fb.fake_quantize(x, fmt, rounding="stochastic", generator=4))
    torch.set_num_threads(threads)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


@pytest.mark.parametrize(
    "fraction", [Fraction(1, 8), Fraction(1, 2), Fraction(3, 4), Fraction(99, 100)], ids=str
)
@pytest.mark.parametrize("name", ["fp8_e4m3", "fp4_e2m1", "int8", "posit8_1", "bf16", "mxfp4", "mx6"])
def test_the_mean_of_many_roundings_is_the_value(name: str, fraction: Fraction) -> None:
    # Between 1 and the next value: with n draws the frequency of going up is within 5 sigma of the fraction.
    n = 40_000
    fmt = fb.format(name)
    ones = fb.fake_quantize(np.ones(16, np.float32), fmt)
    assert np.all(ones == 1)
    above = float(
        fb.fake_quantize(np.nextafter(np.float32(1), np.float32(2)).reshape(1), name, rounding="up")[0]
    )
    x = np.full(n, 1 + float(fraction) * (above - 1), np.float32)
    for sign in (1, -1):
        y = fb.fake_quantize(sign * x, fmt, rounding="stochastic", generator=11)
        assert set(np.unique(sign * y)) == {1.0, above}
        up = np.mean(sign * y == above)
        exactly = float((Fraction(float(x[0])) - 1) / (Fraction(above) - 1))
        assert abs(up - exactly) < 5 * (exactly * (1 - exactly) / n) ** 0.5


def test_rounding_to_nearest_is_biased_where_stochastic_rounding_is_not() -> None:
    # The negative control: 1.1 in steps of one.
    x = np.full(40_000, 1.1, np.float32)
    assert abs(fb.fake_quantize(x, "int8").mean() - 1.1) > 0.09
    assert abs(fb.fake_quantize(x, "int8", rounding="stochastic", generator=0).mean() - 1.1) < 0.01


@pytest.mark.parametrize("element", [f for f in cases.TABLED if not isinstance(f, Exponent)], ids=cases.label)
def test_a_result_is_one_of_the_two_neighbours(element: Element) -> None:
    table = np.unique(values(element)[np.isfinite(values(element))])
    x = np.random.default_rng(3).uniform(max(element.min, -50), min(element.max, 50), 3000)
    y = fb.fake_quantize(x, element, rounding="stochastic", generator=3)
    at = np.clip(np.searchsorted(table, x, side="right"), 1, table.size - 1)
    assert np.all((y == table[at - 1]) | (y == table[at]))


def test_generators_of_numpy_and_torch_advance_and_repeat() -> None:
    x = np.full(64, 0.3, np.float32)
    for make in (np.random.default_rng, lambda s: torch.Generator().manual_seed(s)):
        generator = make(5)
        first = fb.fake_quantize(x, "int8", rounding="stochastic", generator=generator)
        second = fb.fake_quantize(x, "int8", rounding="stochastic", generator=generator)
        assert not np.array_equal(first, second)
        assert np.array_equal(first, fb.fake_quantize(x, "int8", rounding="stochastic", generator=make(5)))


@pytest.mark.parametrize("generator", [None, -1, 2**63, 1.5, "7", True])
def test_stochastic_rounding_without_a_way_to_repeat_it_is_refused(generator: object) -> None:
    with pytest.raises(
        ArgumentError, match=r"needs a seed from 0 to 2\^63 - 1, a numpy.random.Generator or a torch"
    ):
        fb.fake_quantize(np.ones(3, np.float32), "int8", rounding="stochastic", generator=generator)


# ------------------------------------------------------------------------------------------- statistics

MANY = 1 << 22  # values of each test; seeds are fixed, so that a test passes always or never


@pytest.mark.parametrize("random_bits", [16, 32])
@pytest.mark.parametrize("name", ["fp8_e4m3", "int8", "posit8_1", "mxfp4", "mx6", "nvfp4", "quda_half"])
def test_the_errors_of_millions_of_values_add_up_to_nothing(name: str, random_bits: int) -> None:
    x = np.random.default_rng(8).standard_normal((MANY // 1024, 1024)).astype(np.float32)
    low, high = (fb.fake_quantize(x, name, rounding=r).astype(np.float64) for r in ("down", "up"))
    y = fb.fake_quantize(x, name, rounding="stochastic", generator=8, random_bits=random_bits)
    within = (low <= x) & (x <= high)  # the others saturate
    assert np.all((y == low) | (y == high) | ~within)
    error = np.where(within, y - x.astype(np.float64), 0)
    deviation = np.where(within, (x - low) * (high - x), 0).sum() ** 0.5
    assert abs(error.sum()) < 3.5 * deviation
    assert abs(error[:, ::2].sum()) < 3.5 * deviation
    assert abs(np.where(x > 0, error, -error).sum()) < 3.5 * deviation  # towards zero or away from it
    # The control: to nearest the squares are smaller, but what is cut instead of rounded adds up.
    cut = np.where(within, fb.fake_quantize(x, name, rounding="toward_zero") - x.astype(np.float64), 0)
    assert abs(np.where(x > 0, cut, -cut).sum()) > 100 * deviation


def test_neighbours_are_rounded_independently() -> None:
    ups = fb.fake_quantize(np.full(MANY, 0.5, np.float32), "int8", rounding="stochastic", generator=3)
    other = fb.fake_quantize(np.full(MANY, 0.5, np.float32), "int8", rounding="stochastic", generator=4)
    spins = 2 * ups.astype(np.float64) - 1
    # Halves of one word lie 16 apart, words of one counter 32, counters 1, and what 16 of them serve 128.
    lags = (1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 48, 64, 96, 127, 128, 256, 1024)
    assert all(abs(np.dot(spins[lag:], spins[:-lag])) < 4 * MANY**0.5 for lag in lags)
    assert abs(np.dot(spins, 2 * other.astype(np.float64) - 1)) < 4 * MANY**0.5


@pytest.mark.parametrize("random_bits", [16, 32])
def test_draws_take_every_value_as_often(random_bits: int) -> None:
    drawn = draws(np.arange(MANY), 5, random_bits)
    for shift in range(0, random_bits, 16):
        counts = np.bincount((drawn >> shift) & 0xFFFF, minlength=1 << 16)
        chi_squared = np.sum((counts - MANY / 65536) ** 2) / (MANY / 65536)
        assert abs(chi_squared - 65535) < 4 * (2 * 65535) ** 0.5
    bits = (drawn[:, None] >> np.arange(random_bits).astype(drawn.dtype) & 1).sum(axis=0)
    assert np.all(np.abs(bits - MANY / 2) < 4.5 * MANY**0.5 / 2)


def test_sixteen_bits_round_up_from_one_part_in_65536_on_and_32_bits_below_it() -> None:
    for exponent, random_bits, expected in ((-16, 16, 64), (-17, 16, 0), (-17, 32, 32), (-30, 32, 0.004)):
        x = np.full(MANY, 2.0**exponent, np.float32)
        y = fb.fake_quantize(x, "int8", rounding="stochastic", generator=6, random_bits=random_bits)
        assert abs(np.count_nonzero(y) - expected) <= 4 * expected**0.5


@pytest.mark.parametrize("random_bits", [16, 32])
def test_the_number_of_random_bits_reaches_every_way_to_round(random_bits: int) -> None:
    x = normal((64, 96), fb.format("mxfp8_e4m3"))
    given = {"rounding": "stochastic", "generator": 1, "random_bits": random_bits}
    y = fb.fake_quantize(x, "mxfp8_e4m3", **given)
    assert np.array_equal(y, fb.quantize(x, "mxfp8_e4m3", **given).dequantize())
    assert np.array_equal(y, fb.fake_quantize(torch.from_numpy(x), "mxfp8_e4m3", **given).numpy())
    default = fb.fake_quantize(x, "mxfp8_e4m3", rounding="stochastic", generator=1)
    assert np.array_equal(y, default) == (random_bits == 16)
