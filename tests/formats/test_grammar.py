"""The format grammar: what is printed reads back, and what does not read is refused by one clear line."""

import re
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fewbits as fb
from fewbits.errors import FormatError
from fewbits.formats import Bdr, Block, Exponent, Fixed, Float, Format, Lookup, Posit, parse
from tests import cases
from tests.formats import strategies


@pytest.mark.parametrize("name", cases.NAMES)
def test_a_catalogued_format_reads_back_from_its_name_and_from_its_grammar(name: str) -> None:
    fmt = parse(name)
    assert parse(str(fmt)) == fmt
    assert parse(fmt.grammar) == fmt
    assert hash(parse(fmt.grammar)) == hash(fmt)


@given(strategies.formats)
@settings(max_examples=500)
def test_any_format_reads_back_from_what_it_prints(fmt: Format) -> None:
    assert parse(str(fmt)) == fmt
    assert parse(fmt.grammar) == fmt


@pytest.mark.parametrize(
    ("text", "fmt"),
    [
        ("float(e=4,m=3,bias=7,special=fn)", Float(4, 3, 7, "fn")),
        ("float(m=3,e=4)", Float(4, 3, 7, "none")),
        ("float(e=4,m=3,bias=-1)", Float(4, 3, -1)),  # a bias like any other
        ("int(8)", Fixed(8)),
        ("int(bits=8)", Fixed(8)),
        ("int(8,coding=symmetric)", Fixed(8, 0, "symmetric")),
        ("fixed(16,frac=14)", Fixed(16, 14)),
        ("fixed(8)", Fixed(8)),
        ("posit(8,es=1)", Posit(8, 1)),
        ("posit(8)", Posit(8, 2)),
        ("lookup(-1,0,.5,1e3)", Lookup((-1.0, 0.0, 0.5, 1000.0))),
        ("lookup(-0,1)", Lookup((0.0, 1.0))),
        ("lookup(0e-400,1)", Lookup((0.0, 1.0))),
        ("exponent(8)", Exponent(8, 127)),
        ("exponent(5,bias=3)", Exponent(5, 3)),
        ("block(element=float(e=2,m=1),scale=e8m0,size=32)", Block(Float(2, 1), Exponent(8), 32)),
        ("block(element=fp4_e2m1,scale=fp32,size=tensor)", Block(Float(2, 1), strategies.FP32, "tensor")),
        ("bdr(m=7,d1=8,k1=16,d2=1,k2=2)", Bdr(7)),
        ("bdr(m=7)", Bdr(7)),
        ("  bdr ( m = 7 , d2=2 )\n", Bdr(7, d2=2)),
    ],
)
def test_each_constructor_reads_as_the_manual_says(text: str, fmt: Format) -> None:
    assert parse(text) == fmt


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mxfp5", "there is no format named 'mxfp5'; the nearest are mxfp4"),
        ("MXFP4", "there is no format named 'MXFP4'; the nearest are mxfp4"),
        ("qqqqqqqq", "there is no format named 'qqqqqqqq'; `fewbits formats` lists them all"),
        ("", "at character 1, marked >>>: '>>>'; expected the name of a format"),
        ("7", "marked >>>: '>>> 7'; expected the name of a format"),
        ("flaot(e=4,m=3)", "'>>> flaot(e=4,m=3)'; expected one of the constructors float, int, fixed"),
        ("float(e=4,m=3", "'float(e=4,m=3 >>>'; expected ')'"),
        ("float(e=4 m=3)", "'float(e=4  >>> m=3)'; expected ')'"),
        ("float(e=4,m=3))", "'float(e=4,m=3) >>> )'; expected the end of the text"),
        ("mxfp4,mx6", "'mxfp4 >>> ,mx6'; expected the end of the text"),
        (
            "float(e=4,e=3)",
            "'float(e=4, >>> e=3)'; expected an argument not given before, of e, m, bias, special",
        ),
        ("float(e=4,x=3)", "'float(e=4, >>> x=3)'; expected an argument not given before"),
        ("float(e=4)", "'>>> float(e=4)'; expected float with m"),
        ("float(4,3)", "'>>> float(4,3)'; expected float: key=value arguments"),
        ("int(8,bits=9)", "'>>> int(8,bits=9)'; expected int: bits given once"),
        ("int(8,9)", "expected int: key=value arguments after the first"),
        ("int(coding=symmetric,8)", "expected key=value after an earlier key=value"),
        ("int(8,frac=2)", "int: an integer has no frac; write fixed(bits,frac=...)"),
        ("int()", "'int( >>> )'; expected a number, a word or a format"),
        ("float(e=,m=3)", "'float(e= >>> ,m=3)'; expected a number, a word or a format"),
        ("float(e=4,,m=3)", "'float(e=4, >>> ,m=3)'; expected key=value after an earlier key=value"),
        ("float(e=4.5,m=3)", "float: e=4.5 is not an integer from 1 to 8"),
        ("float(e=9,m=3)", "float: e=9 is not an integer from 1 to 8"),
        ("float(e=4,m=-3)", "float: m=-3 is not an integer from 0 to 23"),
        ("float(e=4,m=3,special=inf)", "float: special=inf is not one of none, fn, fnuz, ieee"),
        ("float(e=4,m=3,special=mxfp4)", "float: special=mxfp4 is not one of none, fn, fnuz, ieee"),
        ("float(e=1,m=1,special=ieee)", "float: special=ieee needs e >= 2 and m >= 1"),
        ("float(e=1,m=0,special=fn)", "float: special=fn with e=1, m=0 leaves no number but zero"),
        ("float(e=8,m=23,bias=130)", "spans 2^-152 to 2^125; a value must be exact in float32"),
        ("float(e=8,m=3,bias=100)", "change the bias or use fewer bits"),
        ("int(1)", "fixed: twos_complement needs at least 2 bits; for one bit use lookup(1,-1)"),
        ("int(8,coding=gray)", "fixed: coding=gray is not one of twos_complement, symmetric"),
        ("fixed(8,frac=65)", "fixed: frac=65 is not an integer from -64 to 64"),
        ("posit(2)", "posit: bits=2 is not an integer from 3 to 16"),
        ("posit(8,es=4)", "posit: es=4 is not an integer from 0 to 3"),
        ("lookup(1)", "lookup: 1 values; give 2 to 65536 different ones"),
        ("lookup(1,1.0)", "lookup: 1 is there twice; give 2 to 65536 different values"),
        ("lookup(.1,1,.1)", "lookup: 0.1 is there twice; give 2 to 65536 different values"),
        ("lookup(-1,0,.5,-0,1,0)", "lookup: 0 is there 3 times; give 2 to 65536 different values"),
        ("lookup(-1,0)", "lookup: every value must be within float32's range and the largest above zero"),
        ("lookup(1,1e39)", "within float32's range"),
        ("lookup(1,1e999)", "within float32's range"),
        ("lookup(1,3.4028235677973366e38)", "within float32's range"),  # a tie, which rounds to infinity
        ("lookup(-3.40282357e38,1)", "within float32's range"),
        ("lookup(1,1e-400)", "'lookup(1, >>> 1e-400)'; expected zero, or a number that a float64 holds"),
        ("lookup(1,mxfp4)", "expected lookup: numbers only"),
        ("lookup(1,nan)", "expected lookup: numbers only"),
        ("lookup(values=1)", "'lookup( >>> values=1)'; expected numbers only"),
        ("exponent(9)", "exponent: bits=9 is not an integer from 2 to 8"),
        ("exponent(8,bias=3)", "exponent: bias=3 reaches 2^251; float32 ends at 2^127"),
        ("block(element=fp4_e2m1,scale=e8m0,size=0)", "block: size=0 is not an integer from 1 to 1048576"),
        ("block(element=fp4_e2m1,scale=e8m0,size=-32)", "block: size=-32 is not an integer"),
        ("block(element=fp4_e2m1,scale=e8m0,size=row)", "block: size=row is not a count, channel or tensor"),
        ("block(element=mxfp4,scale=e8m0,size=32)", "block: element=mxfp4 is not a float, int, fixed, posit"),
        ("block(element=e8m0,scale=e8m0,size=32)", "block: element=e8m0 is not a float, int, fixed, posit"),
        (
            "block(element=4,scale=e8m0,size=32)",
            "block: element=4 is not a float, int, fixed, posit or lookup",
        ),
        ("block(element=int4,scale=posit8_1,size=32)", "block: scale=posit8_1 must be an exponent, a float"),
        (
            "block(element=int4,scale=uint4,size=16)",
            "block: an integer scale must be unsigned and needs outer",
        ),
        ("block(element=int4,scale=fp32,size=16,outer_size=tensor)", "block: outer_size without outer"),
        (
            "block(element=int4,scale=e8m0,size=16,outer=fp32)",
            "block: outer must be fp32, over a scale that is",
        ),
        ("block(element=int4,scale=uint4,size=16,outer=bf16)", "block: outer must be fp32"),
        (
            "block(element=int4,scale=uint4,size=16,outer=fp32,outer_size=16)",
            "outer_size is channel or tensor",
        ),
        ("block(element=int4,scale=uint4,size=tensor,outer=fp32)", "over a size that is a count"),
        ("block(element=int4,scale=fp32,size=16,outer=fp32)", "leave no room for an outer scale in float32"),
        # 7 times 1.5 * 2^61
        (
            "block(element=int4,scale=float(e=7,m=1,bias=66),size=16,outer=fp32)",
            "their product must lie from 1 to 2^64",
        ),
        ("bdr(m=0)", "bdr: m=0 is not an integer from 1 to 15"),
        ("bdr(m=7,k1=16,k2=3)", "bdr: k1=16 is not a multiple of k2=3"),
        ("bdr(m=7,k1=4,k2=8)", "bdr: k2=8 is not an integer from 1 to 4"),
        ("block(element=" * 5 + "int4", "expected at most 4 constructors inside each other"),
        ("int(٨)", "expected a number, a word or a format"),
    ],
)
def test_a_text_that_is_no_format_is_refused_with_the_place_or_the_reason(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=re.escape(message)) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


def test_a_value_that_rounds_to_the_largest_float32_is_within_its_range() -> None:
    # As NumPy prints the largest one, and the last float64 below the tie with 2^128.
    for text in ("3.4028235e+38", repr(float(np.nextafter(3.4028235677973366e38, 0)))):
        fmt = parse(f"block(element=lookup(-1,{text}),scale=fp32,size=tensor)")
        assert np.float32(fmt.element.max) == np.finfo(np.float32).max
        assert fb.fake_quantize(np.ones(3, np.float32), fmt) == pytest.approx(1, rel=1e-6)


def test_a_mark_in_a_long_text_shows_its_surroundings_only() -> None:
    text = "lookup(" + ",".join(str(i) for i in range(1000)) + ",?)"
    with pytest.raises(FormatError) as caught:
        parse(text)
    assert f"at character {text.index('?') + 1}, " in str(caught.value)
    assert "999, >>> ?)" in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("given", [None, 4, b"mxfp4", ["mxfp4"]])
def test_what_is_no_text_is_refused_by_its_type(given: object) -> None:
    with pytest.raises(
        FormatError, match=f"written as text, for example 'mxfp4'; got {type(given).__name__}"
    ):
        parse(given)


def test_a_text_of_megabytes_is_refused_unread() -> None:
    with pytest.raises(FormatError, match="a format text of 1000001 characters; expected at most 1000000"):
        parse("x" * 1_000_001)


def test_a_long_name_is_not_repeated_whole() -> None:
    with pytest.raises(FormatError) as caught:
        parse("x" * 100_000)
    assert len(str(caught.value)) < 300


_WORDS = st.sampled_from(
    re.split(
        "_",
        "float_int_fixed_posit_lookup_exponent_block_bdr_mxfp4_e8m0_fp32_tensor_e_m_bias_special_element_scale_"
        "size_outer_frac_es_fn_k1_d2_bits_(_)_(_)_,_=_=_1_8_-3_1e9_1e999_.5_99999999999_nan_é_ ",
    )
)


def refusal(text: str) -> str:
    """Return the line that refuses ``text``, or nothing where it is a format that reads back."""
    try:
        fmt = parse(text)
    except FormatError as error:
        return str(error)
    assert parse(str(fmt)) == fmt
    return ""


@given(st.lists(_WORDS, max_size=25).map("".join) | st.text(max_size=60))
@settings(max_examples=800)
def test_a_random_text_is_a_format_or_a_format_error_and_nothing_else(text: str) -> None:
    assert "\n" not in refusal(text)


@given(strategies.formats, st.data())
@settings(max_examples=500)
def test_a_format_with_one_character_changed_is_a_format_or_a_format_error(
    fmt: Format, data: st.DataObject
) -> None:
    text = fmt.grammar
    at = data.draw(st.integers(0, len(text) - 1))
    new = data.draw(st.sampled_from(["", "(", ")", ",", "=", "0", "9", "-", "e", "."]))
    assert "\n" not in refusal(text[:at] + new + text[at + 1 :])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lookup("ab"), "lookup: values='ab' are not a list of numbers"),
        (lambda: Lookup("12"), "lookup: values='12' are not a list of numbers"),
        (lambda: Lookup(3), "lookup: values=3 are not a list of numbers, such as (-1.0, 0.0, 1.0)"),
        (lambda: Lookup((10**400, 1)), "are not a list of numbers"),
        (lambda: Float(True, 3), "float: e=True is not an integer from 1 to 8"),
        (lambda: Float(np.int64(9), 3), "float: e=9 is not an integer from 1 to 8"),
        (lambda: Fixed(np.float32(8)), "fixed: bits=8.0 is not an integer from 1 to 24"),
        (lambda: Posit("8"), "posit: bits=8 is not an integer from 3 to 16"),
        (
            lambda: Block("fp4_e2m1", "e8m0", 32),
            "block: element=fp4_e2m1 is not a float, int, fixed, posit or lookup; a text was given: read it "
            "with fewbits.formats.parse",
        ),
        (lambda: Block(Float(2, 1), "e8m0", 32), "an unsigned integer; a text was given: read it with"),
        (
            lambda: Block(Float(2, 1), Float(4, 3), 32, "fp32"),
            "outer must be fp32, over a scale that is a float or an integer; a text was given: read it with",
        ),
        (lambda: Bdr(7, k1=np.bool_(True)), "bdr: k1=True is not an integer"),
    ],
)
def test_a_constructor_refuses_what_its_fields_are_not(make: Callable[[], Format], message: str) -> None:
    with pytest.raises(FormatError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (lambda n: Float(n(4), n(3), n(7), "fn"), "fp8_e4m3"),
        (lambda n: Fixed(n(8), n(0)), "int(8)"),
        (lambda n: Posit(n(8), n(1)), "posit8_1"),
        (lambda n: Exponent(n(8), n(127)), "e8m0"),
        (lambda n: Block(Float(2, 1), Exponent(8), n(32)), "mxfp4"),
        (lambda n: Bdr(n(7), n(8), n(16), n(1), n(2)), "mx9"),
    ],
)
def test_integers_of_numpy_make_the_same_format(made: Callable[[Any], Format], name: str) -> None:
    fmt = made(np.int16)
    assert fmt == parse(name)
    assert not any(isinstance(getattr(fmt, f.name), np.generic) for f in fields(fmt))


def test_formats_are_frozen_comparable_and_of_their_own_kind() -> None:
    assert replace(Float(4, 3), special="fn") == Float(4, 3, 7, "fn")
    assert Float(4, 3) != Fixed(8)
    assert Fixed(8) != Exponent(8)
    assert len({parse(name) for name in ("mxfp4", "mxfp4", "nvfp4")}) == 2
    with pytest.raises(AttributeError):
        Float(4, 3).bias = 3
