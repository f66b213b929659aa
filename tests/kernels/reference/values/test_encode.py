"""Every scalar cast against whole-number arithmetic on the table of values: two paths that share no code."""

import numpy as np
import pytest

from fewbits.formats import Element, Exponent, Fixed, Float, Lookup, Posit, values
from fewbits.kernels.reference import encode
from tests import cases
from tests.kernels.exact import exact


def overflows(element: Element) -> list[str]:
    """Return what may become of a value beyond the largest."""
    legal = ["saturate"]
    legal += ["inf"] if element.has_inf else []
    return legal + (["nan"] if element.has_nan and not isinstance(element, Posit) else [])


def compare(element: Element, x: cases.Reals, rounding: str, overflow: str, bits: int = 32) -> list[str]:
    """Return what the kernel gets wrong, one line per value; the must-fail tests use this too."""
    draws = cases.draws(x, rounding, random_bits=bits)
    codes = encode(element, x, rounding, overflow, draws)
    by_hand = exact(element)
    wrong = []
    chances = draws if draws is not None else np.zeros(x.shape, np.uint32)
    for value, code, draw in zip(x.tolist(), codes.tolist(), chances.tolist(), strict=True):
        expected = by_hand.code(value, rounding, overflow, draw, bits)
        if code not in ((expected,) if expected is not None else by_hand.nan):
            wrong.append(f"{element} {rounding} {overflow}: {value!r} became {code:#x}, expected {expected}")
    return wrong


@pytest.mark.parametrize("rounding", cases.ROUNDINGS)
@pytest.mark.parametrize("element", [f for f in cases.TABLED if f.bits <= 8], ids=cases.label)
def test_every_cast_to_8_bits_or_fewer_equals_exact_arithmetic_on_the_values(
    element: Element, rounding: str
) -> None:
    # Everything in the default mode; a fair sample in the others.
    x = cases.telling(element)[: None if rounding == "nearest_even" else 900].astype(np.float64)
    with_specials = np.concatenate([x, [-0.0, np.inf, -np.inf]])
    with_nan = np.append(with_specials, np.nan) if element.has_nan else with_specials
    for overflow in overflows(element):
        for bits in (16, 32) if rounding == "stochastic" else (32,):
            assert compare(element, with_nan, rounding, overflow, bits) == []


@pytest.mark.parametrize("rounding", cases.ROUNDINGS)
@pytest.mark.parametrize("kind", [Float, Fixed, Posit, Lookup, Exponent])
def test_every_cast_to_a_format_made_in_the_grammar_equals_exact_arithmetic(
    kind: type[Element], rounding: str
) -> None:
    for element in (f for f in cases.MADE if isinstance(f, kind)):
        chosen = cases.telling(element)[:100].astype(np.float64)
        for overflow in overflows(element):
            for bits in (16, 32) if rounding == "stochastic" else (32,):
                assert compare(element, np.append(chosen, -0.0), rounding, overflow, bits) == []


@pytest.mark.parametrize("rounding", cases.ROUNDINGS)
@pytest.mark.parametrize("element", [f for f in cases.TABLED if f.bits > 8], ids=cases.label)
def test_casts_to_16_bits_equal_exact_arithmetic_on_a_sample_with_every_exponent(
    element: Element, rounding: str
) -> None:
    x = cases.every_exponent(500, seed=3)
    x = np.concatenate([x[np.isfinite(x)], cases.telling(element)[:1000]]).astype(np.float64)
    assert compare(element, x, rounding, element.default_overflow) == []


@pytest.mark.parametrize("element", cases.TABLED, ids=cases.label)
def test_a_value_of_the_format_stays_itself_in_every_rounding_mode(element: Element) -> None:
    codes, numbers = cases.real_codes(element)
    finite = np.isfinite(numbers)
    kept = codes[finite]
    if isinstance(element, Fixed) and element.coding == "symmetric":
        kept = np.where(kept == 2 ** (element.bits - 1), kept + 1, kept)  # the unused code is not made
    for rounding in cases.ROUNDINGS:
        x = numbers[finite]
        made = encode(element, x, rounding, element.default_overflow, cases.draws(x, rounding))
        assert np.array_equal(made, kept), rounding


@pytest.mark.parametrize("element", cases.TABLED, ids=cases.label)
@pytest.mark.parametrize("rounding", [r for r in cases.ROUNDINGS if r != "stochastic"])
def test_rounding_never_reverses_the_order_of_two_values(element: Element, rounding: str) -> None:
    x = np.sort(cases.telling(element).astype(np.float64))
    x = x[x > 0] if isinstance(element, Exponent) else x
    made = values(element)[encode(element, x, rounding, "saturate", None)]
    assert np.all(np.diff(made) >= 0)


@pytest.mark.parametrize("element", [f for f in cases.ELEMENTS if isinstance(f, Float)], ids=cases.label)
def test_rounding_of_floats_is_symmetric_in_sign_and_up_mirrors_down(element: Float) -> None:
    x = cases.every_exponent(4000, seed=5)
    x = x[np.isfinite(x)].astype(np.float64)
    mirrored = {"up": "down", "down": "up"}
    for rounding in cases.ROUNDINGS:
        draws = cases.draws(x, rounding)
        one = encode(element, x, rounding, "saturate", draws).astype(np.int64)
        other = encode(element, -x, mirrored.get(rounding, rounding), "saturate", draws).astype(np.int64)
        zero = (one == 0) & (other == 0)  # fnuz has one zero
        assert np.all((one ^ other == 2 ** (element.bits - 1)) | zero), rounding


@pytest.mark.parametrize("name", ["tf32", "fp32"])
def test_floats_wider_than_16_bits_equal_float32_arithmetic(name: str) -> None:
    element = next(f for f in cases.ELEMENTS if str(f) == name)
    x = cases.every_exponent(200_000)
    x = x[np.isfinite(x)]
    code = encode(element, x.astype(np.float64), "nearest_even", "inf", None).astype(np.uint32)
    drop = 32 - element.bits
    bits = x.view(np.uint32)
    kept = bits >> drop
    rest = bits - (kept << drop)
    half = 1 << drop >> 1
    expected = kept + ((rest > half) | ((rest == half) & (kept & 1 == 1) & (drop > 0)))
    assert np.array_equal(code, expected)


def test_a_tie_between_two_even_or_two_odd_codes_of_a_lookup_goes_up_or_down() -> None:
    element = Lookup((0.0, 5.0, 2.0, 1.0))  # in order: codes 0, 3, 2, 1
    assert encode(element, np.array([0.5, 1.5, 3.5]), "nearest_even", "saturate", None).tolist() == [0, 2, 2]
    both_even, both_odd = Lookup((0.0, 9.0, 1.0)), Lookup((-9.0, 0.0, 9.0, 1.0))
    assert encode(both_even, np.array([0.5]), "nearest_even", "saturate", None).tolist() == [2]
    assert encode(both_odd, np.array([0.5]), "nearest_even", "saturate", None).tolist() == [1]


def test_nan_has_one_quiet_positive_code() -> None:
    found = {str(f): f.nan_code for f in cases.ELEMENTS if f.has_nan and f.bits <= 16}
    assert {
        name: found[name] for name in ("fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz", "bf16", "e8m0", "posit8_1")
    } == {
        "fp8_e4m3": 0x7F,
        "fp8_e5m2": 0x7E,
        "fp8_e4m3fnuz": 0x80,
        "bf16": 0x7FC0,
        "e8m0": 0xFF,
        "posit8_1": 0x80,
    }
    for element in cases.TABLED:
        if element.has_nan:
            assert np.isnan(values(element)[element.nan_code])
