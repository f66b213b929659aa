"""Blocks against exact arithmetic: the scale's definition, then every element alone in whole numbers."""

import numpy as np
import pytest

from fewbits import kernels
from fewbits.formats import Bdr, Block, Exponent, Fixed, Float, decode, parse, values
from fewbits.kernels.bits.layout import Parts
from fewbits.kernels.reference import dequantize, quantize
from fewbits.kernels.reference.values.scales import exponent
from tests import cases
from tests.kernels.exact import exact


def quantized(x: cases.Reals, fmt: cases.Format, **choices: str) -> Parts:
    """Return codes and scales, blocks along the last axis."""
    return quantize(x, fmt, kernels.options(fmt, **choices))


def rows(size: int, count: int = 12) -> cases.Singles:
    """Return blocks of every kind: all exponents, equal maxima, subnormals, zeros of both signs."""
    x = cases.blocks(count, size, seed=size)
    x[0] = 0
    x[1, ::2] = -0.0
    if size > 3:
        x[2, :4] = (1.0, 0.75, -0.75, 0.5)
        x[3, :4] = (2.0**-140, -(2.0**-149), 2.0**-126, 0)
        x[4] = np.finfo(np.float32).max
    return x


@pytest.mark.parametrize("rounding", [r for r in cases.ROUNDINGS if r != "stochastic"])
@pytest.mark.parametrize(
    "fmt", [f for f in cases.POWER_SCALED if isinstance(f, Block) and f.element.bits <= 8], ids=cases.label
)
def test_elements_under_a_power_of_two_are_the_exactly_divided_values_rounded_once(
    fmt: Block, rounding: str
) -> None:
    assert isinstance(fmt.size, int)
    x = rows(fmt.size)
    parts = quantized(x, fmt, rounding=rounding)
    assert parts.scales is not None
    scale = decode(fmt.scale, parts.scales)
    by_hand = exact(fmt.element)
    expected = [
        [by_hand.code(v, rounding, "saturate") for v in row]
        for row in (x.astype(np.float64) / scale).tolist()
    ]
    assert parts.codes.tolist() == expected


@pytest.mark.parametrize("fmt", [f for f in cases.POWER_SCALED if isinstance(f, Bdr)], ids=cases.label)
@pytest.mark.parametrize("rule", ["floor", "rceil"])
def test_bdr_shifts_a_pair_by_one_iff_both_lie_below_the_top_binade(fmt: Bdr, rule: str) -> None:
    x = rows(fmt.k1, 40).astype(np.float64)
    parts = quantized(x, fmt, scale_rule=rule)
    assert parts.scales is not None
    assert parts.shifts is not None
    by_hand = exact(fmt.element)
    for row, code, scale, shift in zip(x, parts.codes, parts.scales[:, 0], parts.shifts, strict=True):
        amax = np.abs(row).max()
        e1 = int(np.clip(exponent(np.array([amax]), fmt.element, rule)[0], -127, 127)) if amax else -127
        assert scale == e1 + 127
        for i, pair in enumerate(row.reshape(-1, fmt.k2)):
            largest = np.abs(pair).max()
            tau = (
                min(max(e1 - (np.frexp(largest)[1] - 1), 0), fmt.largest_shift)
                if largest
                else fmt.largest_shift
            )
            assert shift[i] == tau
            step = 2.0 ** (e1 - tau)
            wanted = [by_hand.code(v, "nearest_even", "saturate") for v in (pair / step).tolist()]
            assert code[i * fmt.k2 : (i + 1) * fmt.k2].tolist() == wanted


def test_bdr_follows_the_papers_formula_on_values_well_inside_the_range() -> None:
    # step = 2^(E1 - tau - (m - 1)); q = clip(round(x / step), +-(2^m - 1)): With Shared Microexponents,
    # section 3.2.
    x = np.random.default_rng(2).standard_normal((500, 16))
    for m in (7, 4, 2):
        e1 = np.floor(np.log2(np.abs(x).max(axis=-1, keepdims=True)))
        pairs = np.repeat(np.abs(x).reshape(-1, 8, 2).max(axis=-1), 2, axis=-1)
        tau = np.minimum(e1 - np.floor(np.log2(pairs)), 1)
        step = np.exp2(e1 - tau - (m - 1))
        expected = np.clip(np.round(x / step), -(2**m - 1), 2**m - 1) * step
        fmt = Bdr(m)
        assert np.array_equal(dequantize(quantized(x, fmt), fmt, np.float64), expected)


@pytest.mark.parametrize("beta", [0, 1, 2, 3])
def test_a_wider_microexponent_shifts_further_and_none_is_block_floating_point(beta: int) -> None:
    x = np.array([[1.0, 1.0, 0.25, 0.25, 2.0**-6, 2.0**-6, 2.0**-12, 2.0**-12]])
    fmt = Bdr(3, 8, 8, beta, 2)
    parts = quantized(x, fmt)
    if beta == 0:
        assert parts.shifts is None
        block = Block(Fixed(4, 2, "sign_magnitude"), Exponent(8), 8)
        assert np.array_equal(parts.codes, quantized(x, block).codes)
    else:
        assert parts.shifts is not None
        assert parts.shifts.tolist() == [[min(s, 2**beta - 1) for s in (0, 2, 6, 12)]]


@pytest.mark.parametrize("fmt", [f for f in cases.REAL_SCALED if f.outer is None], ids=cases.label)
def test_a_real_scale_is_amax_over_the_largest_element_rounded_to_float32(fmt: Block) -> None:
    size = 24 if isinstance(fmt.size, str) else fmt.size
    x = cases.blocks(40, 2 * size, seed=9)
    parts = quantized(x, fmt)
    assert parts.scales is not None
    grouped = {"tensor": x.reshape(1, 1, -1), "channel": x.reshape(40, 1, -1)}.get(
        str(fmt.size), x.reshape(40, -1, size)
    )
    amax = np.abs(grouped).max(axis=-1)
    expected = amax / np.float32(fmt.element.max)
    scale = decode(fmt.scale, parts.scales).astype(np.float32)
    assert np.array_equal(scale, np.maximum(expected, np.float32(2.0**-149)))
    spread = scale if isinstance(fmt.size, str) else np.repeat(scale, size, axis=-1)
    by_hand = exact(fmt.element)
    quotient = x / spread
    some = np.random.default_rng(0).integers(0, x.size, 500)
    assert parts.codes.ravel()[some].tolist() == [
        by_hand.code(v, "nearest_even", "saturate") for v in quotient.ravel()[some].tolist()
    ]


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_vsq_scales_vectors_by_integers_over_a_real_scale_per_channel(bits: int) -> None:
    # A vector's scale is an integer multiple of the channel's; the largest vector takes the largest integer.
    fmt = parse(f"vsq{bits}")
    assert isinstance(fmt, Block)
    x = np.random.default_rng(bits).standard_normal((5, 64)).astype(np.float32)
    parts = quantized(x, fmt)
    assert parts.scales is not None
    assert parts.outer is not None
    assert parts.outer.shape == (5, 1)
    assert np.array_equal(parts.scales.max(axis=-1), np.full(5, 2**bits - 1))
    wanted = np.abs(x.reshape(5, 4, 16)).max(axis=-1) / (parts.outer * fmt.element.max)
    assert np.all(np.abs(parts.scales - wanted) <= 0.5 + 1e-4)
    assert parts.scales.min() >= 1


def test_dequantize_multiplies_exactly_and_rounds_once() -> None:
    fmt = Block(Float(4, 3, 7, "fn"), Float(8, 23, 127, "ieee"), 1)
    scale = np.float32(0.1)
    parts = Parts(np.array([0x77], np.uint8), np.array([scale.view(np.uint32)]))
    exactly = 240 * float(scale)
    assert dequantize(parts, fmt, np.float64).tolist() == [exactly]
    assert dequantize(parts, fmt, np.float32).tolist() == [float(np.float32(exactly))]


def test_a_product_beyond_float32_is_infinite_there_and_finite_in_float64() -> None:
    # 448 x 2^127: OCP MX v1.0, section 5.1, leaves it to the implementation.
    fmt = parse("mxfp8_e4m3")
    parts = Parts(np.full(32, 0x7E, np.uint8), np.array([0xFE], np.uint8))
    assert np.all(np.isposinf(dequantize(parts, fmt, np.float32)))
    assert np.all(dequantize(parts, fmt, np.float64) == 448 * 2.0**127)


@pytest.mark.parametrize("fmt", cases.POWER_SCALED, ids=cases.label)
def test_rounding_what_is_rounded_under_a_power_of_two_changes_nothing(fmt: cases.Format) -> None:
    x = cases.blocks(200, 48, seed=2)
    once = dequantize(quantized(x, fmt), fmt)
    once = once[np.isfinite(once).all(axis=-1)]
    assert np.array_equal(once, dequantize(quantized(once, fmt), fmt))


@pytest.mark.parametrize("fmt", [f for f in cases.REAL_SCALED if f.outer is None], ids=cases.label)
def test_rounding_again_under_one_real_scale_changes_no_code(fmt: Block) -> None:
    # The scale of the result may differ in its last bit; with two levels (NVFP4, VSQ) the inner one may move
    # too.
    size = 24 if isinstance(fmt.size, str) else fmt.size
    x = cases.blocks(200, 2 * size, seed=2)
    first = quantized(x, fmt)
    again = quantized(dequantize(first, fmt), fmt)
    assert first.scales is not None
    large = decode(fmt.scale, first.scales) > 2.0**-120  # below, float32 has no bits left for a scale
    kept = np.broadcast_to(large if isinstance(fmt.size, str) else np.repeat(large, size, -1), x.shape)
    assert np.array_equal(first.codes[kept], again.codes[kept])


@pytest.mark.parametrize("fmt", cases.BLOCKED, ids=cases.label)
def test_the_sign_of_the_input_is_the_sign_of_the_result(fmt: cases.Format) -> None:
    x = cases.blocks(60, 48, seed=6)
    x = np.concatenate([x, np.where(np.arange(48) % 3 == 0, np.copysign(0, x), x).astype(np.float32)])
    if not fmt.element.has_zero:
        top = np.abs(x).max()  # a quotient that underflows to zero has no sign to keep
        x = np.where(np.abs(x) < top * 2.0**-100, top, x)
    y = dequantize(quantized(x, fmt), fmt)
    mirrored = dequantize(quantized(-x, fmt), fmt)
    assert np.array_equal(-y, mirrored)
    assert np.all((np.sign(y) == np.sign(x)) | (y == 0))
    if fmt.element.signed_zero:
        assert np.array_equal(np.signbit(y), np.signbit(x))
    else:
        assert not np.signbit(y[y == 0]).any()


def test_the_codes_of_every_format_decode_to_the_values_of_the_table() -> None:
    for fmt in cases.TABLED:
        x = np.random.default_rng(0).standard_normal((2, 50))
        x = np.abs(x) if fmt.min >= 0 else x
        parts = quantized(x, fmt)
        assert np.array_equal(dequantize(parts, fmt, np.float64), values(fmt)[parts.codes])
