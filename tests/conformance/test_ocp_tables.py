"""The tables of OCP MX v1.0 (sections 5.2 to 5.4) and OFP8 v1.0 (tables 1 and 2), as literals."""

import numpy as np
import pytest

import fewbits as fb
from fewbits.formats import decode, parse

# format, element, bits, bias, largest, its exponent, smallest normal and subnormal, bits of a block of 32
MX_TABLE = [
    ("mxfp8_e5m2", "fp8_e5m2", 8, 15, 57344.0, 15, 2.0**-14, 2.0**-16, 264),
    ("mxfp8_e4m3", "fp8_e4m3", 8, 7, 448.0, 8, 2.0**-6, 2.0**-9, 264),
    ("mxfp6_e3m2", "fp6_e3m2", 6, 3, 28.0, 4, 2.0**-2, 0.0625, 200),
    ("mxfp6_e2m3", "fp6_e2m3", 6, 1, 7.5, 2, 1.0, 0.125, 200),
    ("mxfp4", "fp4_e2m1", 4, 1, 6.0, 2, 1.0, 0.5, 136),
]

SPECIAL_CODES = {
    ("fp8_e5m2", np.inf): [0x7C],
    ("fp8_e5m2", -np.inf): [0xFC],
    ("fp8_e5m2", np.nan): [0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF],
    ("fp8_e4m3", np.nan): [0x7F, 0xFF],
    ("e8m0", np.nan): [0xFF],
}

# sign, then exponent, then mantissa, as the tables print them
NAMED_CODES = {
    "fp8_e5m2": {
        "0.11110.11": 57344.0,
        "0.00001.00": 2.0**-14,
        "0.00000.11": 0.75 * 2.0**-14,
        "0.00000.01": 2.0**-16,
    },
    "fp8_e4m3": {
        "0.1111.110": 448.0,
        "0.0001.000": 2.0**-6,
        "0.0000.111": 0.875 * 2.0**-6,
        "0.0000.001": 2.0**-9,
    },
    "fp6_e3m2": {"0.111.11": 28.0, "0.001.00": 0.25, "0.000.11": 0.1875, "0.000.01": 0.0625},
    "fp6_e2m3": {"0.11.111": 7.5, "0.01.000": 1.0, "0.00.111": 0.875, "0.00.001": 0.125},
    "fp4_e2m1": {"0.11.1": 6.0, "0.01.0": 1.0, "0.00.1": 0.5},
}


@pytest.mark.parametrize("row", MX_TABLE, ids=lambda row: row[0])
def test_the_limits_of_mx_elements(row):
    block, element, bits, bias, largest, emax, normal, subnormal, block_bits = row
    f = parse(element)
    assert parse(block).element == f
    assert (f.bits, f.bias, f.max, f.emax) == (bits, bias, largest, emax)
    assert (f.smallest_normal, f.smallest_subnormal) == (normal, subnormal)
    assert parse(block).bits_per_value * 32 == block_bits


def test_mxint8_has_127_steps_of_2_to_the_minus_6_on_both_sides():
    element = parse("mxint8").element
    assert (element.max, element.min, element.smallest_normal) == (127 / 64, -127 / 64, 2.0**-6)
    assert parse("mxint8").bits_per_value * 32 == 264
    assert decode(element, np.array([0x40, 0x7F, 0xC0, 0x81])).tolist() == [1.0, 127 / 64, -1.0, -127 / 64]


def test_fp4_holds_these_values_and_no_other():
    wanted = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert decode(parse("fp4_e2m1"), np.arange(8)).tolist() == wanted
    assert decode(parse("fp4_e2m1"), np.arange(8, 16)).tolist() == [-v for v in wanted]


@pytest.mark.parametrize(("name", "special"), SPECIAL_CODES)
def test_special_values_have_these_codes_and_no_other(name, special):
    table = decode(parse(name), np.arange(256))
    found = np.isnan(table) if np.isnan(special) else table == special
    assert np.flatnonzero(found).tolist() == SPECIAL_CODES[name, special]


@pytest.mark.parametrize("name", NAMED_CODES)
def test_the_codes_that_the_tables_spell_out(name):
    for spelled, value in NAMED_CODES[name].items():
        code = int(spelled.replace(".", ""), 2)
        assert decode(parse(name), np.array([code]))[0] == value
        assert fb.fake_quantize(np.array([value]), name)[0] == value


@pytest.mark.parametrize("name", ["fp6_e3m2", "fp6_e2m3", "fp4_e2m1"])
def test_narrow_mx_elements_have_neither_nan_nor_infinity(name):
    f = parse(name)
    assert not f.has_nan
    assert not f.has_inf
    assert np.isfinite(decode(f, np.arange(2**f.bits))).all()


def test_e8m0_is_two_to_the_code_minus_127():
    table = decode(parse("e8m0"), np.arange(255))
    assert table.tolist() == [2.0 ** (c - 127) for c in range(255)]


def test_a_nan_scale_makes_all_32_values_nan_and_spares_the_next_block():
    x = np.ones(64, np.float32)
    x[5] = np.nan
    y = fb.fake_quantize(x, "mxfp8_e4m3")
    assert np.isnan(y[:32]).all()
    assert y[32:].tolist() == [1.0] * 32
