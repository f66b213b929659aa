"""The catalogue as a literal table: what each name means must not change by accident."""

import numpy as np
import pytest

from fewbits.formats import CATALOGUE, Element, Entry, elements, parse, values
from tests import cases

# name, the constructor that it stands for, bits per value with scales counted
TABLE = (
    ("fp32", "float(e=8,m=23,bias=127,special=ieee)", 32),
    ("tf32", "float(e=8,m=10,bias=127,special=ieee)", 19),
    ("bf16", "float(e=8,m=7,bias=127,special=ieee)", 16),
    ("fp16", "float(e=5,m=10,bias=15,special=ieee)", 16),
    ("fp16_e6m9", "float(e=6,m=9,bias=31,special=ieee)", 16),
    ("fp8_e4m3", "float(e=4,m=3,bias=7,special=fn)", 8),
    ("fp8_e5m2", "float(e=5,m=2,bias=15,special=ieee)", 8),
    ("fp8_e4m3_ieee", "float(e=4,m=3,bias=7,special=ieee)", 8),
    ("fp8_e3m4", "float(e=3,m=4,bias=3,special=ieee)", 8),
    ("fp8_e4m3fnuz", "float(e=4,m=3,bias=8,special=fnuz)", 8),
    ("fp8_e5m2fnuz", "float(e=5,m=2,bias=16,special=fnuz)", 8),
    ("fp8_e4m3b11fnuz", "float(e=4,m=3,bias=11,special=fnuz)", 8),
    ("hfp8_e4m3", "float(e=4,m=3,bias=11)", 8),
    ("hfp8_e5m2", "float(e=5,m=2,bias=15,special=ieee)", 8),
    ("fp6_e3m2", "float(e=3,m=2,bias=3)", 6),
    ("fp6_e2m3", "float(e=2,m=3,bias=1)", 6),
    ("fp4_e2m1", "float(e=2,m=1,bias=1)", 4),
    ("fp4_e3m0", "float(e=3,m=0,bias=3)", 4),
    ("e8m0", "exponent(8,bias=127)", 8),
    ("int8", "int(8)", 8),
    ("int4", "int(4)", 4),
    ("int2", "int(2)", 2),
    ("uint8", "int(8,coding=unsigned)", 8),
    ("uint4", "int(4,coding=unsigned)", 4),
    ("uint2", "int(2,coding=unsigned)", 2),
    ("ternary", "int(2,coding=symmetric)", 2),
    ("binary", "lookup(1,-1)", 1),
    ("fixed16_f14", "fixed(16,frac=14)", 16),
    ("fixed16_f10", "fixed(16,frac=10)", 16),
    ("posit5_2", "posit(5)", 5),
    ("posit6_2", "posit(6)", 6),
    ("posit8_0", "posit(8,es=0)", 8),
    ("posit8_1", "posit(8,es=1)", 8),
    ("posit8_2", "posit(8)", 8),
    ("posit16_1", "posit(16,es=1)", 16),
    ("posit16_2", "posit(16)", 16),
    ("mxfp8_e4m3", "block(element=fp8_e4m3,scale=e8m0,size=32)", 8.25),
    ("mxfp8_e5m2", "block(element=fp8_e5m2,scale=e8m0,size=32)", 8.25),
    ("mxfp6_e3m2", "block(element=fp6_e3m2,scale=e8m0,size=32)", 6.25),
    ("mxfp6_e2m3", "block(element=fp6_e2m3,scale=e8m0,size=32)", 6.25),
    ("mxfp4", "block(element=fp4_e2m1,scale=e8m0,size=32)", 4.25),
    ("mxint8", "block(element=fixed(8,frac=6,coding=symmetric),scale=e8m0,size=32)", 8.25),
    ("mx9", "bdr(m=7)", 9),
    ("mx6", "bdr(m=4)", 6),
    ("mx4", "bdr(m=2)", 4),
    ("msfp12", "block(element=fixed(4,frac=2,coding=sign_magnitude),scale=e8m0,size=16)", 4.5),
    ("msfp13", "block(element=fixed(5,frac=3,coding=sign_magnitude),scale=e8m0,size=16)", 5.5),
    ("msfp14", "block(element=fixed(6,frac=4,coding=sign_magnitude),scale=e8m0,size=16)", 6.5),
    ("msfp15", "block(element=fixed(7,frac=5,coding=sign_magnitude),scale=e8m0,size=16)", 7.5),
    ("msfp16", "block(element=fixed(8,frac=6,coding=sign_magnitude),scale=e8m0,size=16)", 8.5),
    ("nvfp4", "block(element=fp4_e2m1,scale=fp8_e4m3,size=16,outer=fp32,outer_size=tensor)", 4.5),
    (
        "vsq4",
        "block(element=int(4,coding=symmetric),scale=uint4,size=16,outer=fp32,outer_size=channel)",
        4.25,
    ),
    (
        "vsq6",
        "block(element=int(6,coding=symmetric),scale=int(6,coding=unsigned),size=16,outer=fp32,"
        "outer_size=channel)",
        6.375,
    ),
    ("vsq8", "block(element=int(8,coding=symmetric),scale=uint8,size=16,outer=fp32,outer_size=channel)", 8.5),
    ("int8_tensor", "block(element=int(8,coding=symmetric),scale=fp32,size=tensor)", 8),
    ("int8_channel", "block(element=int(8,coding=symmetric),scale=fp32,size=channel)", 8),
    ("int4_tensor", "block(element=int(4,coding=symmetric),scale=fp32,size=tensor)", 4),
    ("int4_channel", "block(element=int(4,coding=symmetric),scale=fp32,size=channel)", 4),
    ("ternary_tensor", "block(element=ternary,scale=fp32,size=tensor)", 2),
    ("ternary_channel", "block(element=ternary,scale=fp32,size=channel)", 2),
    ("binary_tensor", "block(element=binary,scale=fp32,size=tensor)", 1),
    ("binary_channel", "block(element=binary,scale=fp32,size=channel)", 1),
    ("fp8_e4m3_tensor", "block(element=fp8_e4m3,scale=fp32,size=tensor)", 8),
    ("fp8_e4m3_channel", "block(element=fp8_e4m3,scale=fp32,size=channel)", 8),
    ("fp8_e5m2_tensor", "block(element=fp8_e5m2,scale=fp32,size=tensor)", 8),
    ("fp8_e5m2_channel", "block(element=fp8_e5m2,scale=fp32,size=channel)", 8),
    ("quda_half", "block(element=int(16,coding=symmetric),scale=fp32,size=24)", 16 + 32 / 24),
    ("int8_256", "block(element=int(8,coding=symmetric),scale=fp32,size=256)", 8 + 32 / 256),
    ("quda_quarter", "block(element=int(8,coding=symmetric),scale=fp32,size=24)", 8 + 32 / 24),
)


def test_the_catalogue_is_exactly_this_table() -> None:
    found = {name: (entry.format.grammar, entry.format.bits_per_value) for name, entry in CATALOGUE.items()}
    assert found == {name: (grammar, bits) for name, grammar, bits in TABLE}


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=cases.NAMES)
def test_every_entry_has_a_source_and_a_line_for_a_stranger(entry: Entry) -> None:
    assert parse(entry.name) == entry.format
    assert len(entry.source) > 10
    assert 3 < len(entry.summary) < 90


def test_a_format_with_two_names_prints_the_first() -> None:
    assert str(parse("hfp8_e5m2")) == "fp8_e5m2"


def test_the_catalogue_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        CATALOGUE["mine"] = CATALOGUE["mxfp4"]


def test_the_elements_of_the_catalogue_are_its_scalar_formats_each_once() -> None:
    scalar = {entry.format for entry in CATALOGUE.values() if isinstance(entry.format, Element)}
    assert len(elements()) == len(scalar)
    assert set(elements()) == scalar


def test_small_integers_ternary_and_binary_mean_these_values() -> None:
    tables = {name: values(e) for name in ("int2", "uint2", "ternary", "binary") if (e := _element(name))}
    assert {name: table.tolist() for name, table in tables.items()} == {
        "int2": [0, 1, -2, -1],
        "uint2": [0, 1, 2, 3],
        "ternary": [0, 1, -2, -1],  # the code of -2 is not written
        "binary": [1, -1],
    }


def test_e3m0_holds_zero_and_powers_of_two() -> None:
    assert values(_element("fp4_e3m0"))[:8].tolist() == [0, 0.25, 0.5, 1, 2, 4, 8, 16]


def test_no_format_up_to_16_bits_has_a_value_outside_float32() -> None:
    for element in cases.TABLED:
        table = values(element)
        assert np.array_equal(table, table.astype(np.float32).astype(np.float64), equal_nan=True)


def _element(name: str) -> Element:
    fmt = parse(name)
    assert isinstance(fmt, Element)
    return fmt
