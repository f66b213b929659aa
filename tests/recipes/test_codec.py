"""Codecs are data: their text says everything, and what does not fit is refused."""

from typing import Any

import pytest

import fewbits as fb
from fewbits.errors import ArgumentError, FormatError
from fewbits.recipes import Codec, RoleFormat, codec, recipe

TEXTS = (
    "fp32",
    "fp16",
    "mxfp8_e4m3",
    "int8_tensor:feedback",
    "fp8_e5m2:aps",
    "fp4_e3m0:aps,feedback,kahan",
    "fp8_e4m3:auto_scale",
    "mxfp4/stochastic/rceil",
    "fp32:kahan",
    "topk:density=0.01",
    "topk:density=0.01,values=fp16,feedback",
    "topk:density=0.01,feedback,momentum=0.9",
    "powersgd",
    "powersgd:rank=4",
    "fp16_compress",
)


@pytest.mark.parametrize("text", TEXTS)
def test_a_codec_prints_the_text_that_makes_it(text: str) -> None:
    assert str(codec(text)) == text == repr(codec(text))
    assert codec(str(codec(text))) == codec(text)
    assert codec(codec(text)) is not None
    assert hash(codec(text)) == hash(codec(text))


def test_formats_of_the_grammar_travel() -> None:
    assert codec("float(e=3,m=0):aps").format == fb.format("fp4_e3m0")
    assert codec(fb.mxfp4).format == fb.mxfp4
    long = "block(element=float(e=2,m=1),scale=e8m0,size=64)/rceil:feedback"
    assert codec(long).values.scale_rule == "rceil"
    assert codec(long).feedback


def test_stochastic_is_a_rounding_of_the_values() -> None:
    assert codec("mxfp8_e4m3:stochastic") == codec("mxfp8_e4m3/stochastic")
    assert codec("topk:density=0.5,values=mxfp4,stochastic").values.rounding == "stochastic"


def test_a_codec_is_extended_as_a_recipe_is() -> None:
    changed = codec("mxfp4").extended(feedback=True, values="mxfp6_e2m3")
    assert changed == codec("mxfp6_e2m3:feedback")
    with pytest.raises(ArgumentError, match="no 'colour'; expected values, density"):
        codec("mxfp4").extended(colour="red")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("topk", "without a density"),
        ("topk:density=0", "density=0.0"),
        ("topk:density=1.5", "density=1.5"),
        ("topk:density=few", "takes a number"),
        ("mxfp4:values=fp16", "only topk takes it"),
        ("mxfp4:aps", "has its own"),
        ("fp8_e4m3:aps,auto_scale", "take one of them"),
        ("fp32:aps", "fp32 needs none"),
        ("fp32:feedback", "is not rounded"),
        ("fp32:stochastic", "nothing is rounded"),
        ("topk:density=0.5,values=fp8_e4m3,aps", "with a density"),
        ("topk:density=0.5,momentum=0.9", "topk and feedback"),
        ("mxfp4:feedback,momentum=0.9", "topk and feedback"),
        ("topk:density=0.5,feedback,momentum=1", "below 1"),
        ("mxfp4:rank=2", "option of powersgd"),
        ("powersgd:rank=0", "rank=0"),
        ("powersgd:feedback", "torch's own hook"),
        ("fp16_compress:density=0.1", "torch's own hook"),
        ("mxfp4:fast", "'fast'"),
        ("mxfp4:density", "'density'"),
        ("posit8_1/shift=2", "belongs to a recipe"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        codec(text)


@pytest.mark.parametrize(
    ("text", "twice"),
    [
        ("topk:density=0.1,density=0.5", "density"),
        ("topk:density=0.1,values=mxfp4,values=mxfp8_e4m3", "values"),
        ("mxfp4:feedback,kahan,feedback", "feedback"),
        ("powersgd:rank=2, rank = 4", "rank"),
    ],
)
def test_an_option_that_is_there_twice_is_refused(text: str, twice: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{twice} is there twice in codec .*; give one$"):
        codec(text)


@pytest.mark.parametrize("given", [None, 8, b"mxfp4", ["mxfp4"]])
def test_what_is_no_text_is_refused_by_name(given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^codec=.*; expected a text, as 'mxfp8_e4m3:feedback'"):
        codec(given)


def test_float32_is_one_codec_however_it_is_written() -> None:
    # By section 3.4 of IEEE 754-2019 this is binary32, whose values travel as they are.
    written = "float(e=8,m=23,bias=127,special=ieee)"
    for same in (fb.fp32, written, Codec(RoleFormat(fb.fp32)), Codec().extended(values=written)):
        assert codec(same) == codec("fp32") == codec(str(codec(same)))
    assert codec("topk:density=0.1").extended(values=RoleFormat(fb.fp32)) == codec("topk:density=0.1")
    with pytest.raises(ArgumentError, match="fp32 is not rounded"):
        codec(f"{written}:feedback")
    assert recipe(f"mxfp6:weight={written}").operands == recipe("mxfp6:weight=fp32").operands
    assert codec("fp32/stochastic").values is not None  # of float64 it is a rounding


def test_an_unknown_format_is_refused_with_what_is_near() -> None:
    with pytest.raises(FormatError, match="mxfp8"):
        codec("mxfp8_e4m4")


def test_a_hook_that_torch_does_not_have_is_refused() -> None:
    with pytest.raises(ArgumentError, match="expected one of powersgd, fp16_compress"):
        Codec(hook="gzip")


@pytest.mark.parametrize(
    ("text", "carries"),
    [
        ("fp32", True),
        ("mxfp4", True),
        ("fp8_e5m2", True),
        ("fp8_e5m2:aps", False),
        ("fp8_e4m3", False),
        ("posit8_1", True),
        ("int8", False),
        ("fp4_e3m0", False),
    ],
)
def test_a_codec_says_whether_nan_travels(text: str, carries: bool) -> None:
    assert codec(text).carries_nan is carries
