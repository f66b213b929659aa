"""Every code of every format of up to 16 bits means one value, and that value encodes to the code again."""

import numpy as np
import pytest

from fewbits.formats import Element, Exponent, Fixed, Lookup, Posit, decode, values
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


def test_the_table_of_values_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        values(cases.TABLED[0])[0] = 1.0
