"""Blocks: what their sizes cost, and the defaults that they give to quantization."""

from fractions import Fraction
from math import ceil
from typing import Any

import pytest
import torch

import fewbits as fb
from fewbits.errors import ArgumentError
from fewbits.formats import Bdr, area_memory_proxy, channel_bits_per_value, packed_bits, parse
from tests import cases


@pytest.mark.parametrize(
    ("name", "shape", "axis", "bits"),
    [
        ("mxfp4", (32,), -1, 136),
        ("mxfp4", (33,), -1, 33 * 4 + 2 * 8),  # a partial last block has a whole scale
        ("mxfp4", (2, 40), -1, 2 * (40 * 4 + 2 * 8)),
        ("mxfp4", (40, 2), 0, 2 * (40 * 4 + 2 * 8)),
        ("mxfp4", (), -1, 4 + 8),
        ("mxfp4", (0,), -1, 0),
        ("mxfp4", (3, 0), 0, 0),
        ("mxfp4", (3, 0), 1, 0),
        ("mx9", (16,), -1, 16 * 8 + 8 + 8),
        ("mx9", (17,), -1, 17 * 8 + 2 * 8 + 9),
        ("nvfp4", (2, 32), -1, 64 * 4 + 4 * 8 + 32),
        ("vsq4", (2, 32), -1, 64 * 4 + 4 * 4 + 2 * 32),
        ("int8_tensor", (2, 32), -1, 64 * 8 + 32),
        ("int8_tensor", (0, 3), 0, 32),  # a scale with nothing to scale
        ("int8_channel", (0, 3), 0, 3 * 32),
        ("int8_channel", (2, 32), -1, 64 * 8 + 2 * 32),
        ("int8_channel", (2, 32), 0, 64 * 8 + 32 * 32),
        ("quda_half", (48,), -1, 48 * 16 + 2 * 32),
        ("fp8_e4m3", (3, 5), -1, 15 * 8),
        ("bdr(m=3,d2=0)", (16,), -1, 16 * 4 + 8),
    ],
)
def test_packed_bits_count_codes_and_every_scale(
    name: str, shape: tuple[int, ...], axis: int, bits: int
) -> None:
    assert packed_bits(parse(name), shape, axis) == bits


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_bits_per_value_is_what_a_large_array_of_whole_blocks_takes(fmt: cases.Format) -> None:
    n = 48 * 10_000
    assert packed_bits(fmt, (n,)) / n == pytest.approx(fmt.bits_per_value, abs=1e-3)


@pytest.mark.parametrize("length", [3, 8, 100])
@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_bits_per_value_of_lines_are_those_that_are_stored(fmt: cases.Format, length: int) -> None:
    lines = 4
    stored = 8 * fb.quantize(torch.ones(lines, length), fmt).nbytes
    per_tensor = sum(g.bits for g in fmt.groups.shared if g.size == "tensor")
    spare = stored - per_tensor - channel_bits_per_value(fmt, length) * lines * length
    # Each part of each line ends on a byte.
    assert -1e-6 <= spare < 8 * lines * (1 + len(fmt.groups.shared))


def test_a_line_that_is_shorter_than_a_block_pays_for_a_whole_scale() -> None:
    fmt = parse("block(element=int(4,coding=symmetric),scale=fp16,size=128)")
    for length, bits in ((8, 6.0), (100, 4.16), (128, 4.125), (200, 4.16)):
        assert channel_bits_per_value(fmt, length) == bits
    assert 8 * fb.quantize(torch.ones(5, 8), fmt).nbytes == 6 * 40
    assert channel_bits_per_value(parse("bdr(m=3,k1=16,d2=1,k2=2)"), 3) == pytest.approx(4 + 8 / 3 + 2 / 3)


@pytest.mark.parametrize("length", [3, 24, 100, 250])
@pytest.mark.parametrize(
    "name", ["block(element=int(6,coding=symmetric),scale=e8m0,size=16)", "bdr(m=3,k1=21,d2=2,k2=7)", "vsq4"]
)
def test_bits_per_value_are_the_float_that_is_nearest_to_their_fraction(name: str, length: int) -> None:
    fmt = parse(name)
    # A part in two sums or quotients is an ulp off: 6.5120000000000005 bits are above a budget of 6.512.
    counts = ((g.bits, length if g.size == "channel" else g.size) for g in fmt.groups.shared)
    shared = sum(bits * ceil(length / size) for bits, size in counts if isinstance(size, int))
    assert channel_bits_per_value(fmt, length) == float(fmt.element.bits + Fraction(shared, length))
    full = sum(Fraction(g.bits, g.size) for g in fmt.groups.shared if isinstance(g.size, int))
    assert fmt.bits_per_value == float(fmt.element.bits + full)


def test_lengths_and_axes_that_are_none_are_refused() -> None:
    wrong: list[Any] = [0, -1, 2.5, True]  # as a caller without types passes them
    for length in wrong:
        with pytest.raises(ArgumentError, match=r"length=.* of a channel; expected an integer from 1 up"):
            channel_bits_per_value(fb.mxfp4, length)
        with pytest.raises(ArgumentError, match=r"length=.* of a channel"):
            area_memory_proxy(fb.mxfp4, length)
    axes: list[Any] = [2, -3, 0.5]
    for axis in axes:
        with pytest.raises(ArgumentError, match=r"axis=.* \(3, 4\); expected an integer from -2 to 1"):
            packed_bits(fb.mxfp4, (3, 4), axis)
    shapes: list[Any] = [(-3, 4), (3, 1.5)]
    for shape in shapes:
        with pytest.raises(ArgumentError, match=r"shape=.*; expected integers from 0 up"):
            packed_bits(fb.mxfp4, shape)


def test_bits_of_bdr_follow_table_2_of_its_paper() -> None:
    # (m + 1) + d1/k1 + d2/k2: With Shared Microexponents, table 2.
    assert [parse(name).bits_per_value for name in ("mx9", "mx6", "mx4")] == [9, 6, 4]
    assert Bdr(3, 8, 32, 2, 4).bits_per_value == 4 + 8 / 32 + 2 / 4


@pytest.mark.parametrize(
    ("name", "overflow", "nonfinite", "zero_block"),
    [
        ("mxfp8_e4m3", "saturate", "block_nan", "smallest"),
        ("mxint8", "saturate", "block_nan", "smallest"),
        ("mx6", "saturate", "block_nan", "smallest"),
        ("nvfp4", "saturate", "block_nan", "one"),
        ("vsq4", "saturate", "raise", "one"),
        ("int8_tensor", "saturate", "block_nan", "one"),
        ("fp8_e4m3_tensor", "saturate", "element", "one"),
        ("block(element=posit(8),scale=e8m0,size=16)", "saturate", "block_nan", "smallest"),
        ("block(element=int4,scale=float(e=4,m=3),size=16)", "saturate", "raise", "one"),
        ("block(element=fp8_e4m3,scale=float(e=4,m=3),size=16)", "saturate", "element", "one"),
    ],
)
def test_defaults_of_a_block_follow_from_what_its_scale_and_element_can_code(
    name: str, overflow: str, nonfinite: str, zero_block: str
) -> None:
    fmt = parse(name)
    assert (fmt.default_overflow, fmt.default_nonfinite, fmt.default_zero_block) == (
        overflow,
        nonfinite,
        zero_block,
    )


@pytest.mark.parametrize(
    ("name", "overflow", "nonfinite"),
    [
        ("fp32", "inf", "element"),
        ("fp8_e5m2", "inf", "element"),
        ("fp8_e4m3", "saturate", "element"),
        ("fp8_e4m3fnuz", "saturate", "element"),
        ("fp4_e2m1", "saturate", "raise"),
        ("int8", "saturate", "raise"),
        ("binary", "saturate", "raise"),
        ("posit8_1", "saturate", "element"),
        ("e8m0", "nan", "element"),
    ],
)
def test_defaults_of_an_element_follow_from_its_codes(name: str, overflow: str, nonfinite: str) -> None:
    fmt = parse(name)
    assert (fmt.default_overflow, fmt.default_nonfinite) == (overflow, nonfinite)
