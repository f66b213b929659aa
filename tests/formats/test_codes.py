"""Every code of every format of up to 16 bits means one value, and that value encodes to the code again."""

import re
from typing import Any

import numpy as np
import pytest

from fewbits.errors import ArgumentError, DTypeError, FormatError
from fewbits.formats import Element, Exponent, Fixed, Lookup, Posit, decode, parse, values
from fewbits.kernels.reference import encode
from tests import cases


def round_trip(element: Element) -> tuple[cases.Codes, cases.Codes]:
    """Return every code, and the code that its value encodes to."""
    codes = np.arange(2**element.bits)
    return codes, encode(element, values(element), "nearest_even", element.default_overflow, None)


def expected(element: Element) -> cases.Codes:
    """Return the code that each code should come back as: itself but for the exceptions listed here."""
    codes = np.arange(2**element.bits)
    if element.has_nan:
        codes = np.where(np.isnan(values(element)), element.nan_code, codes)  # all NaN become one
    if isinstance(element, Fixed) and element.coding == "symmetric":
        # The most negative code is read, and never written.
        codes = np.where(codes == 2 ** (element.bits - 1), codes + 1, codes)
    return codes


@pytest.mark.parametrize("element", cases.TABLED, ids=cases.label)
def test_every_code_of_the_catalogue_decodes_and_encodes_back(element: Element) -> None:
    codes, back = round_trip(element)
    used = codes < len(element.values) if isinstance(element, Lookup) else codes >= 0
    assert np.array_equal(back[used], expected(element)[used])


@pytest.mark.parametrize("element", cases.MADE, ids=cases.label)
def test_every_code_of_formats_made_in_the_grammar_decodes_and_encodes_back(element: Element) -> None:
    codes = np.arange(2**element.bits)
    table = values(element)
    if isinstance(element, Lookup):
        codes = codes[: len(element.values)]
        assert np.isnan(table[len(codes) :]).all()  # a code that means nothing
    back = encode(element, table[codes], "nearest_even", element.default_overflow, None)
    assert np.array_equal(back, expected(element)[codes])


@pytest.mark.parametrize("element", [*cases.TABLED, *cases.MADE], ids=cases.label)
def test_no_two_codes_mean_the_same_number_except_zero_and_minus_zero(element: Element) -> None:
    numbers = cases.real_codes(element)[1]
    zeros = int(np.count_nonzero(numbers == 0))
    assert len(np.unique(numbers)) == len(numbers) - max(zeros - 1, 0)
    assert zeros == (1 + element.signed_zero if not isinstance(element, Exponent | Lookup) else zeros)


@pytest.mark.parametrize("element", [*cases.TABLED, *cases.MADE], ids=cases.label)
def test_facts_of_an_element_are_those_of_its_table(element: Element) -> None:
    numbers = cases.real_codes(element)[1]
    finite = numbers[np.isfinite(numbers)]
    if isinstance(element, Fixed) and element.coding == "symmetric":
        finite = finite[finite > finite.min()]
    assert element.max == finite.max()
    assert element.min == finite.min()
    assert 2.0**element.emax <= element.max < 2.0 ** (element.emax + 1)
    assert element.smallest_subnormal == np.abs(finite[finite != 0]).min()
    assert element.has_nan == (bool(np.isnan(values(element)).any()) and not isinstance(element, Lookup))
    assert element.has_inf == bool(np.isinf(numbers).any())
    assert element.signed_zero == bool(np.any((finite == 0) & np.signbit(finite)))
    assert element.has_zero == bool((finite == 0).any())
    assert element.finest_step == np.diff(np.unique(finite)).min() or not element.has_zero
    assert 2.0**element.emin <= element.smallest_normal < 2.0 ** (element.emin + 1)
    assert element.code_count == len(values(element)) - (
        np.count_nonzero(np.isnan(values(element))) if isinstance(element, Lookup) else 0
    )


@pytest.mark.parametrize("element", [*cases.TABLED, *cases.MADE], ids=cases.label)
def test_the_positive_values_of_an_element_are_those_of_its_grid_if_it_has_one(element: Element) -> None:
    if element.grid is None:
        assert isinstance(element, Exponent | Lookup | Posit)
        return
    emin, mantissa_bits, _ = element.grid
    numbers = cases.real_codes(element)[1]
    positive = np.unique(numbers[(numbers > 0) & np.isfinite(numbers)])
    below = np.concatenate([[0.0], positive[:-1]])
    binade = np.frexp(np.maximum(below, 2.0**emin))[1] - 1
    assert np.array_equal(positive - below, np.ldexp(1.0, binade - mantissa_bits))  # no multiple is missing


@pytest.mark.parametrize("element", cases.TABLED, ids=cases.label)
def test_decode_takes_codes_of_any_shape_and_any_integer_type(element: Element) -> None:
    codes = np.arange(2**element.bits)[: min(2**element.bits, 64)].reshape(2, -1)
    for dtype in (np.uint8, np.uint16, np.int64):
        assert np.array_equal(decode(element, codes.astype(dtype)), values(element)[codes], equal_nan=True)


@pytest.mark.parametrize(
    ("element", "codes", "error", "told"),
    [
        (
            "fp4_e2m1",
            [0, 16, 31],
            ArgumentError,
            "code 31 of fp4_e2m1, whose width in bits is 4; expected 0 to 15",
        ),
        ("fp4_e2m1", [3, -1], ArgumentError, "code -1 of fp4_e2m1"),
        ("binary", [1, 2], ArgumentError, "code 2 of binary, whose width in bits is 1; expected 0 to 1"),
        ("int8", [256], ArgumentError, "code 256 of int8"),
        ("posit8_1", [-129], ArgumentError, "code -129 of posit8_1"),
        ("fp32", [2**32], ArgumentError, "code 4294967296 of fp32"),
        ("fp4_e2m1", [1.5], DTypeError, "codes of float64; expected integers"),
        (
            "mxfp4",
            [1],
            FormatError,
            "mxfp4 has scales, and its codes no values of their own; take its .element",
        ),
    ],
)
def test_what_is_no_code_of_an_element_is_refused(element: str, codes: Any, error: Any, told: str) -> None:
    with pytest.raises(error, match=re.escape(told)):
        decode(parse(element), np.array(codes))


def test_codes_of_a_list_without_a_value_are_nan_and_no_codes_are_no_values() -> None:
    element = Lookup((-1.0, 0.0, 1.0))
    assert np.isnan(decode(element, np.array([3]))).tolist() == [True]
    assert decode(element, np.zeros((0, 2), np.uint8)).shape == (0, 2)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (parse("mxfp4"), "mxfp4 has scales"),
        ("fp4_e2m1", "element='fp4_e2m1' is str; expected an element format"),
    ],
)
def test_values_are_those_of_an_element(given: Any, told: str) -> None:
    with pytest.raises(FormatError, match=re.escape(told)):
        values(given)


def test_the_table_of_values_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        values(cases.TABLED[0])[0] = 1.0
