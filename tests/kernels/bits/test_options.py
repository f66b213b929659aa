"""The choices of how to quantize: every legal one is taken, every other is refused by a sentence."""

import itertools
import re
from typing import Any

import numpy as np
import pytest

import fewbits as fb
from fewbits import kernels
from fewbits.errors import ArgumentError
from fewbits.formats import Posit, parse
from fewbits.kernels.bits.options import NONFINITES, OVERFLOWS, ROUNDINGS, RULES, ZERO_BLOCKS
from tests import cases


def test_the_choices_are_these() -> None:
    assert ROUNDINGS == cases.ROUNDINGS
    assert RULES == cases.SCALE_RULES
    assert (OVERFLOWS, NONFINITES, ZERO_BLOCKS) == (cases.OVERFLOWS, cases.NONFINITES, cases.ZERO_BLOCKS)


@pytest.mark.parametrize(
    ("name", "choices", "message"),
    [
        ("mxfp4", {"rounding": "nearest"}, "rounding='nearest' is not one of nearest_even, nearest_away,"),
        (
            "mxfp4",
            {"scale_rule": "round"},
            "scale_rule='round' is not one of floor, ceil, rceil, even, 1.75,",
        ),
        ("mxfp4", {"overflow": "wrap"}, "overflow='wrap' is not one of saturate, inf, nan"),
        (
            "mxfp4",
            {"nonfinite": "keep"},
            "nonfinite='keep' is not one of block_nan, element, saturate, raise",
        ),
        ("mxfp4", {"zero_block": "zero"}, "zero_block='zero' is not one of smallest, one"),
        ("mxfp4", {"random_bits": 8}, "random_bits=8 is not one of 16, 32"),
        ("mxfp4", {"random_bits": True}, "random_bits=True is not one of 16, 32"),
        (
            "mxfp4",
            {"random_bits": 32},
            "random_bits=32 with rounding='nearest_even', which draws nothing; leave it out, or take",
        ),
        (
            "fp8_e4m3",
            {"scale_rule": "rceil"},
            "scale_rule='rceil' chooses a power-of-two scale; fp8_e4m3 has none",
        ),
        ("nvfp4", {"scale_rule": "rceil"}, "nvfp4 has none: leave it out"),
        (
            "ternary_channel",
            {"scale_rule": "twn", "rounding": "up"},
            "rounding='up' with scale_rule='twn', which cuts at a threshold and rounds nothing",
        ),
        ("fp8_e4m3", {"overflow": "inf"}, "overflow='inf': fp8_e4m3 has no infinity; use 'saturate'"),
        ("mxfp4", {"overflow": "nan"}, "overflow='nan': fp4_e2m1 has no NaN; use 'saturate'"),
        (
            "posit8_1",
            {"overflow": "nan"},
            "overflow='nan': posit8_1 never rounds a number to NaR; use 'saturate'",
        ),
        ("mxfp4", {"nonfinite": "element"}, "nonfinite='element': fp4_e2m1 has no NaN; use 'block_nan'"),
        ("int8", {"nonfinite": "element"}, "nonfinite='element': int8 has no NaN"),
        ("fp16", {"nonfinite": "block_nan"}, "nonfinite='block_nan': fp16 has no scale that can be NaN"),
        ("vsq4", {"nonfinite": "block_nan"}, "nonfinite='block_nan': vsq4 has no scale that can be NaN"),
    ],
)
def test_what_a_format_cannot_do_is_refused_by_name(name: str, choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        kernels.options(parse(name), **choices)
    for function in (fb.fake_quantize, fb.quantize):
        with pytest.raises(ArgumentError, match=re.escape(message)):
            function(np.ones(3, np.float32), name, **choices)


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_every_combination_of_choices_either_works_or_is_refused_with_a_way_out(fmt: cases.Format) -> None:
    element, scales = fmt.element, fmt.groups.scales
    x = np.linspace(-3, 3, 40, dtype=np.float32)
    for overflow, nonfinite, zero_block in itertools.product(OVERFLOWS, NONFINITES, ZERO_BLOCKS):
        legal = overflow == "saturate" or (element.has_inf if overflow == "inf" else element.has_nan)
        legal &= not (overflow == "nan" and isinstance(element, Posit))
        legal &= nonfinite != "element" or element.has_nan
        legal &= nonfinite != "block_nan" or (scales is not None and scales.element.has_nan)
        choices = {"overflow": overflow, "nonfinite": nonfinite, "zero_block": zero_block}
        if legal:
            assert fb.fake_quantize(x, fmt, **choices).shape == x.shape
        else:
            with pytest.raises(ArgumentError, match="; use "):
                fb.fake_quantize(x, fmt, **choices)


@pytest.mark.parametrize("rule", cases.SCALE_RULES)
@pytest.mark.parametrize("fmt", cases.POWER_SCALED, ids=cases.label)
def test_every_scale_rule_works_with_every_format_that_has_a_power_of_two(
    fmt: cases.Format, rule: str
) -> None:
    x = cases.blocks(20, 33, seed=1)
    y = fb.fake_quantize(x, fmt, scale_rule=rule)
    assert np.array_equal(y, fb.quantize(x, fmt, scale_rule=rule).dequantize())
    if rule == "rceil":
        top = np.abs(x).max(axis=-1) < 1e30
        assert np.all(np.isfinite(y[top]))
