"""What every format declares, as literals: its facts as text, its parts, the codes of NaN and infinity."""

import pytest
from hypothesis import given

from fewbits.formats import Exponent, Fixed, Float, Format, Group, Groups, parse
from tests import cases
from tests.formats import strategies

NVFP4 = """\
format              nvfp4
written as          block(element=fp4_e2m1,scale=fp8_e4m3,size=16,outer=fp32,outer_size=tensor)
bits per value      4.5
scale               fp8_e4m3, one per 16 values
outer scale         fp32, one per tensor
element             fp4_e2m1
largest             6
most negative       -6
bias                1
smallest normal     1
smallest subnormal  0.5
not numbers         none
summary             16 E2M1 share an E4M3, the tensor an FP32
source              NVIDIA, Pretraining LLMs with NVFP4, 2025; Transformer Engine"""

MX9 = """\
format          mx9
written as      bdr(m=7)
bits per value  9
scale           e8m0, one per 16 values
microexponent   a shift by 0 to 1, one per 2 values
element         fixed(8,frac=6,coding=sign_magnitude)
largest         1.984375
most negative   -1.984375
step            0.015625
coding          sign magnitude
summary         16 values share an exponent, pairs a one-bit shift; 7 magnitude bits
source          Darvish Rouhani et al., With Shared Microexponents, ISCA 2023, table 2"""

E4M3 = """\
format              fp8_e4m3
written as          float(e=4,m=3,bias=7,special=fn)
bits per value      8
largest             448
most negative       -448
bias                7
smallest normal     0.015625
smallest subnormal  0.001953125
not numbers         one NaN
summary             no infinity, one NaN, largest 448
source              OCP 8-bit Floating Point (OFP8) v1.0, tables 1 and 2"""

POSIT = """\
format          posit(7,es=1)
written as      posit(7,es=1)
bits per value  7
largest         1024
most negative   -1024
smallest        0.0009765625"""

E4M3_NUMBERS, UINT1, FP32 = Float(4, 3, 7, "fn"), Fixed(1, 0, "unsigned"), Float(8, 23, 127, "ieee")


@pytest.mark.parametrize(
    ("name", "table"), [("nvfp4", NVFP4), ("mx9", MX9), ("fp8_e4m3", E4M3), ("posit(7,es=1)", POSIT)]
)
def test_a_format_prints_its_own_table(name: str, table: str) -> None:
    assert repr(parse(name)) == table


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_every_fact_of_the_catalogue_is_a_line_of_its_own(fmt: cases.Format) -> None:
    assert all("\n" not in value for _, value in fmt.facts)
    assert len(repr(fmt).splitlines()) == len(fmt.facts)


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("fp8_e4m3", Groups(Group(E4M3_NUMBERS))),
        ("mxfp4", Groups(Group(Float(2, 1)), Group(Exponent(8), 32))),
        ("mx9", Groups(Group(Fixed(8, 6, "sign_magnitude")), Group(Exponent(8), 16), Group(UINT1, 2))),
        ("bdr(m=3,d2=0)", Groups(Group(Fixed(4, 2, "sign_magnitude")), Group(Exponent(8), 16))),
        (
            "nvfp4",
            Groups(Group(Float(2, 1)), Group(E4M3_NUMBERS, 16), outer=Group(FP32, "tensor")),
        ),
        ("int8_channel", Groups(Group(Fixed(8, 0, "symmetric")), Group(FP32, "channel"))),
    ],
)
def test_a_format_declares_the_parts_that_an_array_is_stored_in(name: str, groups: Groups) -> None:
    assert parse(name).groups == groups
    assert parse(name).element == groups.codes.element


@given(strategies.formats)
def test_bits_per_value_are_those_of_the_groups_that_have_a_count(fmt: Format) -> None:
    counted = [group for group in fmt.groups if group is not None and isinstance(group.size, int)]
    assert fmt.bits_per_value == pytest.approx(sum(group.bits / int(group.size) for group in counted))


@pytest.mark.parametrize(
    ("name", "nan", "inf"),
    [
        ("fp16", 0x7E00, 0x7C00),
        ("fp8_e5m2", 0x7E, 0x7C),
        ("fp8_e4m3", 0x7F, None),
        ("fp8_e4m3fnuz", 0x80, None),
        ("fp4_e2m1", None, None),
        ("posit8_1", 0x80, None),
        ("e8m0", 0xFF, None),
        ("int8", None, None),
        ("binary", None, None),
    ],
)
def test_an_element_declares_the_codes_of_nan_and_infinity(
    name: str, nan: int | None, inf: int | None
) -> None:
    element = parse(name).element
    assert (element.nan_code, element.inf_code) == (nan, inf)
    assert (element.has_nan, element.has_inf) == (nan is not None, inf is not None)


@pytest.mark.parametrize(
    ("name", "block_size"), [("mxfp4", 32), ("mx9", 16), ("nvfp4", 16), ("int8_channel", 1), ("fp32", 1)]
)
def test_the_block_size_is_that_of_the_scale_and_one_without_a_count(name: str, block_size: int) -> None:
    assert parse(name).block_size == block_size


def test_an_element_is_its_own_element_and_a_block_is_not() -> None:
    assert parse("fp8_e4m3").element is parse("fp8_e4m3")
    assert parse("mxfp8_e4m3").element == parse("fp8_e4m3")


def test_a_format_that_is_not_catalogued_has_no_entry() -> None:
    assert parse("float(e=3,m=5)").entry is None
    entry = parse("block(element=float(e=2,m=1),scale=e8m0,size=32)").entry
    assert entry is not None
    assert entry.name == "mxfp4"
