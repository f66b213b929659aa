"""The narrowest of some formats."""

import pytest

from fewbits.errors import ArgumentError
from fewbits.formats.narrowest import narrowest


def test_the_narrowest_has_the_fewest_bits_of_elements_then_of_scales_then_of_mantissa() -> None:
    assert narrowest(["fp32", "mxfp4", "nvfp4", "fp16"]) == "mxfp4"
    assert narrowest(("fp8_e4m3", "fp8_e5m2", "fp64")) == "fp8_e5m2"
    assert narrowest([]) is None


def test_one_text_is_no_list_of_formats() -> None:
    with pytest.raises(ArgumentError, match="formats='fp32', a text; expected a list of formats"):
        narrowest("fp32")
    assert narrowest(["fp32"]) == "fp32"
