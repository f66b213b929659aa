"""float64 rounded by the kernels of float32 is what the definition makes of it, bit for bit."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fewbits as fb
from fewbits import kernels
from fewbits.formats import Format, parse
from fewbits.kernels import reference
from fewbits.kernels.arrays.wide import fake_quantize_wide, odd
from fewbits.kernels.bits.options import Options
from tests import cases
from tests.native import inputs

Reals = NDArray[np.float64]


def defined(x: Reals, fmt: Format, chosen: Options, amax: float | None) -> Any:
    return reference.dequantize(reference.quantize(x, fmt, chosen, amax), fmt, np.float64)


def telling(fmt: Format) -> Reals:
    """Return boundaries of the element, their float64 neighbours and values near, in many scales."""
    rng = np.random.default_rng(0)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        x = inputs.telling(fmt.element)[:20_000].astype(np.float64)
    x = x[np.abs(x) < 2.0**30]  # not NaN either
    x = np.concatenate([x, np.nextafter(x, np.inf), np.nextafter(x, -np.inf), x * (1 + 2.0**-40)])
    x = np.resize(rng.permutation(x), (300, 130))
    x *= np.exp2(rng.integers(-20, 20, (300, 1)))
    x[rng.random(x.shape) < 0.05] = 0
    return np.where((x != 0) & (np.abs(x) < 2.0**-59), 0, x)


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_every_format_equals_the_definition(fmt: Format) -> None:
    x = telling(fmt)
    for rounding in ("nearest_even", "nearest_away", "toward_zero", "up", "down"):
        chosen = kernels.options(fmt, rounding=rounding)
        for amax in (None, 1.7, 1e-3):
            found = fake_quantize_wide(x, fmt, chosen, amax)
            if found is not None:
                wanted = defined(x, fmt, chosen, amax)
                assert found.tobytes() == wanted.tobytes(), (rounding, amax)
                turned = fake_quantize_wide(np.asfortranarray(x), fmt, chosen, amax)
                assert turned is not None
                assert turned.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("rule", ["ceil", "rceil", "even", "midmax"])
@pytest.mark.parametrize("name", ["mxfp4", "mxfp6_e3m2", "mx6"])
def test_every_scale_rule_sees_the_bits_that_were_cut_off(name: str, rule: str) -> None:
    fmt = parse(name)
    chosen = kernels.options(fmt, scale_rule=rule)
    x = telling(fmt)
    x[:, ::32] = np.nextafter(fmt.element.max * np.exp2(np.arange(300.0) % 40)[:, None], np.inf)
    found = fake_quantize_wide(x, fmt, chosen, None)
    assert found is not None
    assert found.tobytes() == defined(x, fmt, chosen, None).tobytes()


@pytest.mark.parametrize("m", [3, 4, 5])
def test_oas_steps_where_it_should_between_two_floats(m: int) -> None:
    fmt = parse(f"block(element=float(e=4,m={m},special=fn),scale=e8m0,size=32)")
    top = 2 - Fraction(2, 2**m)
    step = 2 * top * Fraction(511, 512) * (2 - Fraction(1, 2 ** (m + 1))) / (4 - Fraction(2, 2**m))
    for units in range(-64, 64):
        largest = float(step) + units * 2.0**-28  # a float32 is 32 of them wide
        scale = 2.0 ** ((Fraction(largest) >= step) - 8)
        x = np.zeros(32)
        x[:3] = largest, scale * fmt.element.smallest_subnormal, -scale * fmt.element.smallest_subnormal * 0.4
        y = fb.fake_quantize(x, fmt, scale_rule="oas")
        assert (y[1:3] == [x[1], 0]).all(), units  # twice the scale loses the former, half keeps the latter


def test_a_largest_magnitude_beyond_float32_chooses_the_largest_scale() -> None:
    fmt = "block(element=fp4_e2m1,scale=e8m0,size=tensor)"
    for amax in (2.0**129, 1e300):
        y = fb.fake_quantize(np.array([1.0, -1.0, 0.0]), fmt, amax=amax, rounding="up")
        assert y.tolist() == [2.0**126, 0, 0]  # half of 2^127


@pytest.mark.parametrize(
    "name", ["fp32", "bf16", "fp16", "posit16_1", "mx9", "mxint8", "mxfp8_e4m3", "quda_half", "int8_channel"]
)
def test_the_formats_of_matrices_take_this_way(name: str) -> None:
    fmt = parse(name)
    assert fake_quantize_wide(np.ones((2, 32)), fmt, kernels.options(fmt), None) is not None


def test_what_is_out_of_range_is_left_to_the_definition() -> None:
    fmt = parse("bf16")
    for bad in (np.nan, np.inf, 2.0**61, 2.0**-61, 5e-324):
        x = np.array([[1.0, bad, 0.0]])
        assert fake_quantize_wide(x, fmt, kernels.options(fmt), None) is None
    single = parse("fp32")  # too fine to round twice, but for the rounding that the CPU has
    assert fake_quantize_wide(np.ones((1, 3)), single, kernels.options(single, rounding="up"), None) is None


def test_odd_is_the_value_itself_or_the_odd_one_of_its_neighbours() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal(10_000) * np.exp2(rng.integers(-50, 50, 10_000))
    x[::3] = x[::3].astype(np.float32)
    y = odd(x)
    exact = y.astype(np.float64) == x
    assert exact[::3].all()
    assert (y.view(np.int32)[~exact] % 2 == 1).all()
    assert (np.abs(y.astype(np.float64) - x) < np.spacing(np.abs(y))).all()
    # The control: rounded to nearest first, ties between values of a format come out wrong.
    twice, fmt = np.array([[1 + 2.0**-8 + 2.0**-40]]), parse("bf16")
    assert defined(twice, fmt, kernels.options(fmt), None) == 1 + 2.0**-7
    assert defined(twice.astype(np.float32), fmt, kernels.options(fmt), None) == 1
    assert fake_quantize_wide(twice, fmt, kernels.options(fmt), None) == 1 + 2.0**-7
