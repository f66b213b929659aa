"""Blocks whose scales share one of their line equal the definition, wherever its largest magnitude lies."""

import numpy as np
import pytest

from fewbits.formats import parse
from fewbits.kernels.bits.options import options
from tests.native.definition import differences

FORMATS = (
    "vsq4",
    "vsq8",
    "block(element=int(6,coding=symmetric),scale=fp8_e5m2,size=24,outer=fp32,outer_size=channel)",
    "block(element=fp4_e2m1,scale=fp8_e4m3,size=128,outer=fp32,outer_size=channel)",
)
# Within a tile, several with a tail, and more blocks than are measured before.
LENGTHS = (1, 37, 1000, 2048, 5003, 33000)


@pytest.mark.parametrize("text", FORMATS)
@pytest.mark.parametrize("length", LENGTHS)
def test_the_largest_magnitude_of_a_line_is_found_anywhere(text: str, length: int) -> None:
    fmt = parse(text)
    places = sorted({0, 1, length // 3, length - length // 3, length - 1} & set(range(length)))
    x = np.random.default_rng(length).standard_normal((len(places), length)).astype(np.float32)
    x[range(len(places)), places] = np.float32(-40.0)
    for choice in ({}, {"rounding": "stochastic", "seed": 3}):
        assert differences(x, fmt, 1, options(fmt, **choice)) == [], choice


@pytest.mark.parametrize("text", FORMATS)
@pytest.mark.parametrize("length", LENGTHS)
def test_lines_with_and_without_what_is_not_finite_follow_each_other(text: str, length: int) -> None:
    fmt = parse(text)
    x = np.random.default_rng(length).standard_normal((6, length)).astype(np.float32)
    x[1, length // 2], x[3, length - 1], x[4, 0] = np.nan, -np.inf, np.inf
    x[5] = 0.0  # and one whose scale nothing decides
    # The scales of VSQ cannot be NaN: what is not finite is refused there.
    for choice in ({"nonfinite": "saturate"}, *(() if text.startswith("vsq") else ({},))):
        assert differences(x, fmt, 1, options(fmt, **choice)) == [], choice
