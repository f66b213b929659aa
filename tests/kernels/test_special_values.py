"""What NaN, infinity, zero and the ends of the range become: each written rule, by its choice."""

from typing import Any

import numpy as np
import pytest

import fewbits as fb
from fewbits.errors import ArgumentError, DataError
from fewbits.formats import Block, Element, Exponent, Float, Lookup, Posit, decode, parse
from fewbits.kernels import reference
from fewbits.kernels.bits.layout import Parts
from fewbits.kernels.bits.options import options
from tests import cases

INF, NAN = np.inf, np.nan
BLOCK_NAN = tuple(f for f in cases.BLOCKED if f.scale.has_nan)
PER_BLOCK = tuple(f for f in BLOCK_NAN if isinstance(f.size, int))


def both(x: object, fmt: str | cases.Format, **choices: str) -> cases.Reals:
    """Return the rounded values, after checking that fake_quantize and quantize agree on every bit."""
    array = np.asarray(x, np.float32)
    whole, stored = fb.fake_quantize(array, fmt, **choices), fb.quantize(array, fmt, **choices).dequantize()
    assert np.array_equal(whole, stored, equal_nan=True)
    assert np.array_equal(np.signbit(whole[~np.isnan(whole)]), np.signbit(stored[~np.isnan(stored)]))
    return whole


def parts_of(x: object, fmt: str | cases.Format, **choices: str) -> Parts:
    """Return codes and scales."""
    return fb.quantize(np.asarray(x, np.float32), fmt, **choices).parts()


# ----------------------------------------------------------------------------------------------------------
# scalars


@pytest.mark.parametrize("element", [f for f in cases.ELEMENTS if f.has_nan], ids=cases.label)
def test_nan_becomes_the_formats_nan(element: Element) -> None:
    signalling = np.array([0x7F800001, 0xFF800001, 0x7FC00000, 0xFFC00000], np.uint32).view(np.float32)
    assert np.isnan(both(signalling, element)).all()
    assert parts_of(signalling, element).codes.tolist() == [element.nan_code] * 4


@pytest.mark.parametrize("element", [f for f in cases.ELEMENTS if not f.has_nan], ids=cases.label)
@pytest.mark.parametrize(
    ("bad", "nan", "inf"), [([NAN, 1], 1, 0), ([INF, 1], 0, 1), ([-INF, NAN, INF], 1, 2)]
)
def test_where_nothing_can_be_nan_nonfinite_input_is_refused_and_counted(
    element: Element, bad: list[float], nan: int, inf: int
) -> None:
    for function in (fb.fake_quantize, fb.quantize):
        with pytest.raises(
            DataError, match=f"the array holds {nan} NaN and {inf} infinities.*nonfinite='saturate'"
        ):
            function(np.array(bad, np.float32), element)


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_raise_refuses_in_every_format_and_passes_what_is_finite(fmt: cases.Format) -> None:
    with pytest.raises(DataError, match="holds 1 NaN and 0 infinities"):
        fb.fake_quantize(np.array([NAN, 1], np.float32), fmt, nonfinite="raise")
    assert both([0.5, 1], fmt, nonfinite="raise").shape == (2,)


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_saturate_reads_infinity_as_the_largest_value_and_nan_as_zero(fmt: cases.Format) -> None:
    most = float(np.finfo(np.float32).max)
    assert np.array_equal(
        both([INF, -INF, NAN, 1, 0], fmt, nonfinite="saturate"),
        both([most, -most, 0, 1, 0], fmt),
        equal_nan=True,
    )


@pytest.mark.parametrize("element", [f for f in cases.ELEMENTS if isinstance(f, Float)], ids=cases.label)
def test_beyond_the_largest_float_becomes_what_overflow_says(element: Float) -> None:
    beyond = [element.max * 1.5, -element.max * 1.5] if element.max < 2e38 else [INF, -INF]
    choices = {"nonfinite": "element"} if element.has_nan else {}
    assert both(beyond, element, overflow="saturate", **choices).tolist() == [element.max, -element.max]
    if element.has_inf:
        assert both(beyond, element, overflow="inf").tolist() == [INF, -INF]
        assert both(beyond, element).tolist() == [INF, -INF]
    if element.has_nan:
        assert np.isnan(both(beyond, element, overflow="nan")).all()
        assert parts_of(beyond, element, overflow="nan").codes.tolist() == [element.nan_code] * 2


def test_infinity_in_a_float_without_one_is_the_largest_value_unless_told_otherwise() -> None:
    # OFP8 v1.0, section 5: saturating and non-saturating conversion.
    assert both([INF, -INF], "fp8_e4m3").tolist() == [448, -448]
    assert np.isnan(both([INF, -INF], "fp8_e4m3", overflow="nan")).all()
    assert both([INF, -INF], "fp8_e5m2", overflow="saturate").tolist() == [57344, -57344]


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        ("nearest_even", [INF, -INF]),
        ("toward_zero", [57344, -57344]),
        ("up", [INF, -57344]),
        ("down", [57344, -INF]),
    ],
)
def test_directed_rounding_overflows_in_its_own_direction_only(rounding: str, expected: list[float]) -> None:
    # IEEE 754-2019, section 7.4. An infinity in the input stays one.
    assert both([1e6, -1e6], "fp8_e5m2", rounding=rounding).tolist() == expected
    assert both([INF, -INF], "fp8_e5m2", rounding=rounding).tolist() == [INF, -INF]


def test_the_largest_value_holds_up_to_the_tie_that_goes_to_an_even_code() -> None:
    assert both([464, 464.001], "fp8_e4m3", overflow="nan").tolist()[0] == 448  # 448 has the even code
    assert np.isnan(both([464.001], "fp8_e4m3", overflow="nan"))[0]
    assert both([61439.99, 61440], "fp8_e5m2").tolist() == [57344, INF]  # 57344 has the odd one


@pytest.mark.parametrize("posit", [f for f in cases.ELEMENTS if isinstance(f, Posit)], ids=cases.label)
def test_a_posit_saturates_at_both_ends_and_infinity_is_no_real_number(posit: Posit) -> None:
    tiny = posit.smallest_normal
    assert both([3e38, -3e38, 1e-37, -1e-37], posit).tolist() == [posit.max, -posit.max, tiny, -tiny]
    assert np.isnan(both([INF, -INF, NAN], posit)).all()
    with pytest.raises(ArgumentError, match="never rounds a number to NaR; use 'saturate'"):
        fb.quantize(np.ones(1, np.float32), posit, overflow="nan")


FAR = (
    "block(element=posit(8),scale=exponent(2,bias=3),size=4)",
    "block(element=posit(8),scale=float(e=2,m=1,bias=20),size=4)",
    "block(element=posit(8),scale=fp32,size=tensor)",
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rounding", cases.ROUNDINGS)
@pytest.mark.parametrize("text", FAR)
def test_a_number_whose_quotient_is_beyond_the_dtype_is_a_number_of_a_posit(
    text: str, rounding: str, dtype: type
) -> None:
    most, fmt = float(np.finfo(dtype).max), parse(text)
    assert isinstance(fmt, Block)
    x = np.array([most, -most, INF, -INF], dtype)
    # Far too small a scale: with it even a number far below the largest is beyond it.
    amax = {"amax": 1e-30} if fmt.size == "tensor" else {}
    given: dict[str, Any] = {"nonfinite": "element", "rounding": rounding, **amax}
    given |= {"generator": 1} if rounding == "stochastic" else {}
    stored = fb.quantize(x, fmt, **given)
    decoded = decode(fmt.element, stored.parts().codes)
    assert decoded[:2].tolist() == [fmt.element.max, -fmt.element.max]
    assert np.isnan(decoded[2:]).all()
    whole = fb.fake_quantize(x, fmt, **given)
    assert np.array_equal(whole, stored.dequantize(), equal_nan=True)


WITH_ZERO = tuple(f for f in cases.ELEMENTS if not isinstance(f, Exponent | Lookup))


@pytest.mark.parametrize("element", WITH_ZERO, ids=cases.label)
def test_zero_keeps_its_sign_where_minus_zero_has_a_code(element: Element) -> None:
    tiny = [0.0, -0.0, 1e-45, -1e-45]
    if isinstance(element, Posit):
        tiny = tiny[:2]
    y = both(tiny, element, rounding="toward_zero") if element.bits < 32 else both(tiny[:2], element)
    assert not y.any()
    assert np.signbit(y).tolist() == [element.signed_zero and bool(np.signbit(v)) for v in tiny[: y.size]]


def test_e8m0_reads_zero_as_the_smallest_power_negatives_as_nan_and_clamps_on_request() -> None:
    x = [0.0, -0.0, 1e-45, -1.0, -1e-45, 1.0, 3e38, INF, NAN]
    codes = parts_of(x, "e8m0").codes
    assert codes.tolist() == [0, 0, 0, 0xFF, 0xFF, 127, 0xFF, 0xFF, 0xFF]
    clamped = parts_of(x, "e8m0", overflow="saturate").codes
    assert clamped.tolist() == [0, 0, 0, 0xFF, 0xFF, 127, 0xFE, 0xFE, 0xFF]
    assert parts_of([3e38, INF], "e8m0", rounding="toward_zero").codes.tolist() == [0xFE, 0xFF]


def test_subnormal_inputs_and_results_are_exact() -> None:
    ones = np.array([1, 2, 3, 0x400000, 0x7FFFFF, 0x80000001], np.uint32).view(np.float32)
    assert np.array_equal(both(ones, "fp32").view(np.uint32), ones.view(np.uint32))
    assert both([2.0**-9, 1.5 * 2.0**-9, 2.0**-10, 1.01 * 2.0**-10], "fp8_e4m3").tolist() == [
        2.0**-9,
        2.0**-8,
        0,
        2.0**-9,
    ]


# -----------------------------------------------------------------------------------------------------------
# blocks


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("fmt", PER_BLOCK, ids=cases.label)
def test_block_nan_makes_the_whole_block_nan_and_no_other(fmt: Block, bad: float) -> None:
    size = int(fmt.size)
    x = np.tile(np.linspace(-2, 3, size, dtype=np.float32), 4)
    clean = both(x, fmt)
    x[size + 1] = bad
    y = both(x, fmt, nonfinite="block_nan")
    assert np.isnan(y[size : 2 * size]).all()
    assert np.array_equal(np.delete(y, np.s_[size : 2 * size]), np.delete(clean, np.s_[size : 2 * size]))
    parts = parts_of(x, fmt, nonfinite="block_nan")
    assert parts.scales is not None
    assert parts.scales[1] == fmt.scale.nan_code
    assert not parts.codes[size : 2 * size].any()  # the codes of such a block are ignored, and zero


@pytest.mark.parametrize("fmt", [f for f in BLOCK_NAN if f not in PER_BLOCK], ids=cases.label)
def test_block_nan_reaches_the_whole_channel_or_tensor(fmt: Block) -> None:
    x = np.ones((3, 40), np.float32)
    x[1, 7] = NAN
    y = both(x, fmt, nonfinite="block_nan")
    assert np.isnan(y[1]).all()
    assert np.isnan(y).all() == (fmt.size == "tensor")


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp8_e5m2", "fp8_e4m3_tensor", "fp8_e5m2_channel"])
def test_element_keeps_nan_alone_and_infinity_as_overflow_says(name: str) -> None:
    x = np.array([1.0, NAN, INF, -INF, 0.5] + [0.25] * 27, np.float32)
    finite = np.where(np.isfinite(x), x, 0)
    y = both(x, name, nonfinite="element")
    assert np.isnan(y).tolist() == np.isnan(x).tolist()
    others = np.isfinite(x)
    assert np.array_equal(y[others], both(finite, name)[others])  # the scale is that of the finite values
    fmt = parse(name)
    assert isinstance(fmt, Block)
    top = fmt.element.max * 2.0**-fmt.element.emax if "mx" in name else 1.0
    assert y[2:4].tolist() == [top, -top]
    lost = both(x, name, nonfinite="element", overflow="nan")
    assert np.isnan(lost[1:4]).all()
    if fmt.element.has_inf:
        assert both(x, name, nonfinite="element", overflow="inf")[2:4].tolist() == [INF, -INF]


@pytest.mark.parametrize("zero_block", cases.ZERO_BLOCKS)
@pytest.mark.parametrize("fmt", cases.BLOCKED, ids=cases.label)
def test_a_block_of_zeros_stays_zero_and_takes_the_scale_asked_for(fmt: Block, zero_block: str) -> None:
    x = np.zeros((2, 48), np.float32)
    x[:, ::3] = -0.0
    y = both(x, fmt, zero_block=zero_block)
    if fmt.element.has_zero:
        assert not y.any()
        assert np.array_equal(np.signbit(y), np.signbit(x) & fmt.element.signed_zero)
    else:
        assert np.unique(y).tolist() == [fmt.scale.smallest_subnormal if zero_block == "smallest" else 1.0]
    parts = parts_of(x, fmt, zero_block=zero_block)
    assert parts.scales is not None
    assert _decoded(fmt, parts).tolist() == [
        fmt.scale.smallest_subnormal if zero_block == "smallest" else 1.0
    ]
    if parts.shifts is not None:
        assert np.all(parts.shifts == 1)  # a pair of zeros lies below the top binade


def _decoded(fmt: Block, parts: Parts) -> cases.Reals:
    assert parts.scales is not None
    return np.unique(decode(fmt.scale, parts.scales))


@pytest.mark.parametrize("zero_block", cases.ZERO_BLOCKS)
def test_a_block_of_zeros_under_scales_above_one_takes_the_smallest_and_no_zero(zero_block: str) -> None:
    fmt = parse("block(element=fp4_e2m1,scale=float(e=4,m=3,bias=-20),size=4)")  # scales from 2^18
    x = np.array([[0.0] * 4, [-0.0, 0, 0, 0]], np.float32)
    chosen = options(fmt, zero_block=zero_block)
    for parts in (parts_of(x, fmt, zero_block=zero_block), reference.quantize(x, fmt, chosen)):
        assert parts.codes.tolist() == [[0] * 4, [8, 0, 0, 0]]
        assert decode(fmt.scale, parts.scales).tolist() == [[2.0**18], [2.0**18]]


@pytest.mark.parametrize("fmt", cases.BLOCKED, ids=cases.label)
def test_the_default_for_a_block_of_zeros_is_the_smallest_power_or_one(fmt: Block) -> None:
    parts = parts_of(np.zeros(48), fmt)
    without_power = 1.0 if fmt.element.has_zero else 2.0**-149
    assert _decoded(fmt, parts).tolist() == [2.0**-127 if fmt in cases.POWER_SCALED else without_power]


@pytest.mark.parametrize("name", ["mxfp4", "mxint8", "mx9", "msfp12"])
def test_values_beyond_the_largest_scale_saturate_under_it(name: str) -> None:
    # Only float64 input and large elements get there; the scale stays 2^127.
    x = np.array([1e300, -1e300, 2.0**127, 1e40], np.float64)
    q = fb.quantize(x, name)
    parts = q.parts()
    assert parts.scales is not None
    assert parts.scales.tolist() == [0xFE]
    fmt = parse(name)
    top = fmt.element.max * 2.0**127
    assert q.dequantize().tolist() == [top, -top, 2.0**127, top]
    assert np.array_equal(fb.fake_quantize(x, name), q.dequantize())


def test_a_narrow_scale_saturates_at_its_own_ends() -> None:
    narrow = "block(element=int(8,coding=symmetric),scale=exponent(4,bias=7),size=4)"  # 2^-7 to 2^7
    assert both([2.0**30, 1, 2, 3], narrow).tolist() == [127 * 128, 0, 0, 0]
    assert both([0.25, 0.001, -0.002, 0], narrow).tolist() == [0.25, 0, -0.0, 0]
    assert parts_of([0.25, 0, 0, 0], narrow).scales.tolist() == [0]
    real = "block(element=int(8,coding=symmetric),scale=fp8_e4m3,size=4)"
    assert both([1e6, -1e6, 0, 448], real).tolist() == [448 * 127, -448 * 127, 0, 448]
    assert both([2.0**-9, 2.0**-12, 0, 0], real).tolist() == [
        2.0**-9,
        0,
        0,
        0,
    ]  # the smallest scale, not zero


def test_blocks_of_subnormals_keep_what_the_smallest_scale_leaves() -> None:
    # amax 2^-130 would want a scale below 2^-127: that one is taken and low bits are lost.
    x = np.array([2.0**-130, 2.0**-128, -(2.0**-149), 2.0**-127], np.float32)
    assert both(x, "mxfp4").tolist() == [0, 2.0**-128, -0.0, 2.0**-127]
    assert parts_of(x, "mxfp8_e4m3").scales.tolist() == [0]
    assert both(x, "mxfp8_e4m3").tolist() == [*x.tolist()[:2], -0.0, *x.tolist()[3:]]


def test_two_level_scales_survive_the_smallest_and_largest_tensors() -> None:
    for name in ("nvfp4", "vsq4", "vsq8"):
        for size in (3e38, 1.0, 1e-30):
            x = (size * np.linspace(-1, 1, 64)).astype(np.float32)
            assert fb.qsnr(x, both(x, name)) > 15
        tiny = (1e-44 * np.linspace(-1, 1, 64)).astype(np.float32)
        assert np.isfinite(both(tiny, name)).all()
    assert not both(np.zeros(40), "nvfp4").any()
    one_loud_block = np.concatenate([np.full(16, 1e-20), np.full(16, 1e20)]).astype(np.float32)
    assert both(one_loud_block, "nvfp4")[16:].tolist() == pytest.approx([1e20] * 16, rel=1e-6)


@pytest.mark.parametrize("name", ["nvfp4", "fp8_e4m3_tensor", "mxfp4"])
def test_a_signalling_nan_is_a_nan_like_the_others(name: str) -> None:
    x = np.ones(33)
    x[3] = np.array([0x7FF0000000000001], np.uint64).view(np.float64)[0]  # any operation on it warns
    y = np.ones(33)
    y[3] = np.nan
    assert np.array_equal(fb.fake_quantize(x, name), fb.fake_quantize(y, name), equal_nan=True)
