"""The tables of the OCP specifications, literally: element formats, special codes, the scale, sizes of
blocks.

Sources: OCP Microscaling Formats (MX) v1.0, section 5 and table 1; OCP 8-bit Floating Point (OFP8) v1.0,
tables 1, 2.
"""

import math

import pytest

from fewbits.formats import Block, Element, packed_bits, parse, values

INF, NAN = math.inf, math.nan

# name, code, value
CODES = (
    # OFP8 E5M2: bias 15
    ("fp8_e5m2", 0x00, 0.0),
    ("fp8_e5m2", 0x80, -0.0),
    ("fp8_e5m2", 0x01, 2.0**-16),  # smallest subnormal
    ("fp8_e5m2", 0x03, 0.75 * 2.0**-14),  # largest subnormal
    ("fp8_e5m2", 0x04, 2.0**-14),  # smallest normal
    ("fp8_e5m2", 0x3C, 1.0),
    ("fp8_e5m2", 0x7B, 57344.0),  # largest normal, 1.75 x 2^15
    ("fp8_e5m2", 0xFB, -57344.0),
    ("fp8_e5m2", 0x7C, INF),
    ("fp8_e5m2", 0xFC, -INF),
    ("fp8_e5m2", 0x7D, NAN),
    ("fp8_e5m2", 0x7E, NAN),
    ("fp8_e5m2", 0x7F, NAN),
    ("fp8_e5m2", 0xFD, NAN),
    ("fp8_e5m2", 0xFE, NAN),
    ("fp8_e5m2", 0xFF, NAN),
    # OFP8 E4M3: bias 7, no infinity
    ("fp8_e4m3", 0x00, 0.0),
    ("fp8_e4m3", 0x80, -0.0),
    ("fp8_e4m3", 0x01, 2.0**-9),
    ("fp8_e4m3", 0x07, 0.875 * 2.0**-6),
    ("fp8_e4m3", 0x08, 2.0**-6),
    ("fp8_e4m3", 0x38, 1.0),
    ("fp8_e4m3", 0x78, 256.0),
    ("fp8_e4m3", 0x7E, 448.0),  # 1.75 x 2^8
    ("fp8_e4m3", 0xFE, -448.0),
    ("fp8_e4m3", 0x7F, NAN),
    ("fp8_e4m3", 0xFF, NAN),
    # MX FP6 E3M2: bias 3, every code a number
    ("fp6_e3m2", 0x01, 0.0625),
    ("fp6_e3m2", 0x03, 0.1875),
    ("fp6_e3m2", 0x04, 0.25),
    ("fp6_e3m2", 0x0C, 1.0),
    ("fp6_e3m2", 0x1F, 28.0),
    ("fp6_e3m2", 0x20, -0.0),
    ("fp6_e3m2", 0x3F, -28.0),
    # MX FP6 E2M3: bias 1, every code a number
    ("fp6_e2m3", 0x01, 0.125),
    ("fp6_e2m3", 0x07, 0.875),
    ("fp6_e2m3", 0x08, 1.0),
    ("fp6_e2m3", 0x1F, 7.5),
    ("fp6_e2m3", 0x20, -0.0),
    ("fp6_e2m3", 0x3F, -7.5),
    # MX INT8: two's complement with an implicit scale of 2^-6
    ("fixed(8,frac=6,coding=symmetric)", 0x00, 0.0),
    ("fixed(8,frac=6,coding=symmetric)", 0x01, 1 / 64),
    ("fixed(8,frac=6,coding=symmetric)", 0x40, 1.0),
    ("fixed(8,frac=6,coding=symmetric)", 0x7F, 127 / 64),
    ("fixed(8,frac=6,coding=symmetric)", 0x81, -127 / 64),
    ("fixed(8,frac=6,coding=symmetric)", 0xFF, -1 / 64),
    # MX E8M0: the scale
    ("e8m0", 0x00, 2.0**-127),
    ("e8m0", 0x01, 2.0**-126),
    ("e8m0", 0x7E, 0.5),
    ("e8m0", 0x7F, 1.0),
    ("e8m0", 0xFE, 2.0**127),
    ("e8m0", 0xFF, NAN),
)

# name, bits, largest, its exponent, smallest normal, smallest subnormal, has infinity, has NaN
FACTS = (
    ("fp8_e5m2", 8, 57344.0, 15, 2.0**-14, 2.0**-16, True, True),
    ("fp8_e4m3", 8, 448.0, 8, 2.0**-6, 2.0**-9, False, True),
    ("fp6_e3m2", 6, 28.0, 4, 2.0**-2, 2.0**-4, False, False),
    ("fp6_e2m3", 6, 7.5, 2, 1.0, 0.125, False, False),
    ("fp4_e2m1", 4, 6.0, 2, 1.0, 0.5, False, False),
    ("fixed(8,frac=6,coding=symmetric)", 8, 127 / 64, 0, 2.0**-6, 2.0**-6, False, False),
    ("e8m0", 8, 2.0**127, 127, 2.0**-127, 2.0**-127, False, True),
)

# name, element, bits of a block of 32, bits per value
BLOCKS = (
    ("mxfp8_e5m2", "fp8_e5m2", 264, 8.25),
    ("mxfp8_e4m3", "fp8_e4m3", 264, 8.25),
    ("mxfp6_e3m2", "fp6_e3m2", 200, 6.25),
    ("mxfp6_e2m3", "fp6_e2m3", 200, 6.25),
    ("mxfp4", "fp4_e2m1", 136, 4.25),
    ("mxint8", "fixed(8,frac=6,coding=symmetric)", 264, 8.25),
)


def element_of(name: str) -> Element:
    """Return a scalar format."""
    fmt = parse(name)
    assert isinstance(fmt, Element)
    return fmt


@pytest.mark.parametrize(("name", "code", "value"), CODES)
def test_a_code_of_the_specification_means_its_value(name: str, code: int, value: float) -> None:
    found = values(element_of(name))[code]
    assert (math.isnan(found) and math.isnan(value)) or found == value
    assert math.isnan(value) or math.copysign(1, found) == math.copysign(1, value)


def test_e2m1_is_these_sixteen_values() -> None:
    half = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert values(element_of("fp4_e2m1")).tolist() == half + [-v for v in half]


@pytest.mark.parametrize(
    ("name", "bits", "largest", "emax", "normal", "subnormal", "has_inf", "has_nan"), FACTS
)
def test_extremes_of_an_element_are_those_of_the_specification(
    name: str,
    bits: int,
    largest: float,
    emax: int,
    normal: float,
    subnormal: float,
    has_inf: bool,
    has_nan: bool,
) -> None:
    e = element_of(name)
    assert (e.bits, e.max, e.emax) == (bits, largest, emax)
    assert (e.smallest_normal, e.smallest_subnormal) == (normal, subnormal)
    assert (e.has_inf, e.has_nan) == (has_inf, has_nan)


@pytest.mark.parametrize(("name", "element", "bits", "per_value"), BLOCKS)
def test_a_block_is_32_elements_and_one_e8m0(name: str, element: str, bits: int, per_value: float) -> None:
    fmt = parse(name)
    assert isinstance(fmt, Block)
    assert fmt == Block(element_of(element), element_of("e8m0"), 32)
    assert packed_bits(fmt, (32,)) == bits
    assert fmt.bits_per_value == per_value
