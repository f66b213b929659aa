"""Kernels with one deliberate mistake each: the comparisons that pass elsewhere reject them all."""

from collections.abc import Callable

import numpy as np
import pytest

import fewbits as fb
from fewbits import kernels
from fewbits.formats import Bdr, Block, Element, Float, Format, Posit, decode, parse, values
from fewbits.kernels import native
from fewbits.kernels.arrays import conversions, lent
from fewbits.kernels.bits.packing import pack
from fewbits.kernels.reference import encode
from fewbits.kernels.reference.values import scales, threefry
from fewbits.kernels.reference.values.scales import exponent
from tests import cases
from tests.conformance import test_ml_dtypes, test_posits, test_threefry, test_torchao, test_vectors
from tests.conformance.test_ml_dtypes import Peer
from tests.formats import test_codes
from tests.kernels.reference.quantize import test_quantize
from tests.kernels.reference.values import test_encode, test_scale_rules

E4M3, FP4, FP16 = (
    next(p for p in test_ml_dtypes.FLOATS if p.name == n) for n in ("fp8_e4m3", "fp4_e2m1", "fp16")
)


# ---------------------------------------------------------------------------------------------- scalar casts


def ties_away(peer: Peer, x: cases.Singles) -> cases.Codes:
    return encode(peer.element, x.astype(np.float64), "nearest_away", peer.overflow, None)


def truncated(peer: Peer, x: cases.Singles) -> cases.Codes:
    return encode(peer.element, x.astype(np.float64), "toward_zero", peer.overflow, None)


def minus_zero_lost(peer: Peer, x: cases.Singles) -> cases.Codes:
    codes = test_ml_dtypes.ours(peer, x)
    return np.where(codes == 2 ** (peer.element.bits - 1), 0, codes)


def subnormals_flushed(peer: Peer, x: cases.Singles) -> cases.Codes:
    tiny = np.abs(x) < peer.element.smallest_normal
    return test_ml_dtypes.ours(peer, np.where(tiny, np.copysign(np.float32(0), x), x))


def rounded_twice(peer: Peer, x: cases.Singles) -> cases.Codes:
    once = fb.fake_quantize(x, "bf16" if peer is not FP16 else "tf32")
    return test_ml_dtypes.ours(peer, once)


def wrong_at_overflow(peer: Peer, x: cases.Singles) -> cases.Codes:
    kept = np.where(np.isfinite(x), np.clip(x, -peer.element.max, peer.element.max), x)
    return test_ml_dtypes.ours(peer, kept.astype(np.float32))


@pytest.mark.parametrize("peer", [E4M3, FP4, FP16], ids=lambda p: p.name)
@pytest.mark.parametrize("cast", [ties_away, truncated, minus_zero_lost, subnormals_flushed, rounded_twice])
def test_a_wrong_cast_is_rejected_by_ml_dtypes(peer: Peer, cast: Callable[..., cases.Codes]) -> None:
    x = np.append(cases.telling(peer.element), np.float32(-0.0))
    assert test_ml_dtypes.differences(peer, x).size == 0
    assert test_ml_dtypes.differences(peer, x, cast).size > 0


def test_saturation_in_place_of_nan_or_infinity_is_rejected_by_ml_dtypes() -> None:
    for peer in (E4M3, FP16):
        assert test_ml_dtypes.differences(peer, cases.every_exponent(10_000), wrong_at_overflow).size > 0


def test_a_single_wrong_float32_among_ten_thousand_is_found() -> None:
    x = cases.every_exponent(10_000)
    inside = int(np.flatnonzero((np.abs(x) > 1) & (np.abs(x) < 400))[0])

    def almost(peer: Peer, kept: cases.Singles) -> cases.Codes:
        codes = test_ml_dtypes.ours(peer, kept)
        return np.where(kept == x[inside], codes ^ 1, codes)

    assert test_ml_dtypes.differences(E4M3, x, almost).tolist() == [x[inside]]


@pytest.mark.parametrize("name", ["fp8_e5m2", "int4", "posit6_2", "e8m0", "ternary"])
@pytest.mark.parametrize("other", [r for r in cases.ROUNDINGS if r not in ("nearest_even", "stochastic")])
def test_one_rounding_mode_passed_off_as_another_is_rejected_by_exact_arithmetic(
    name: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    element = parse(name)
    assert isinstance(element, Element)
    if other == "nearest_away" and name == "e8m0":
        return  # with no mantissa bit the two are one
    x = cases.telling(element).astype(np.float64)
    assert test_encode.compare(element, x, "nearest_even", "saturate") == []
    monkeypatch.setattr(test_encode, "encode", lambda e, v, _, o, d: encode(e, v, other, o, d))
    assert test_encode.compare(element, x, "nearest_even", "saturate") != []


def test_draws_that_are_one_too_large_are_rejected_by_exact_arithmetic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    element = Float(4, 3, 7, "fn")
    # Values whose dropped fraction and draw are exactly one, or one unit less: a shifted sum shows.
    draw = cases.draws(np.zeros(500), "stochastic")
    assert draw is not None
    x = 1 + (2.0**32 - draw - np.arange(500) % 2) * 2.0**-35
    assert test_encode.compare(element, x, "stochastic", "saturate") == []
    monkeypatch.setattr(test_encode, "encode", lambda e, v, r, o, d: encode(e, v, r, o, d + np.uint32(1)))
    assert test_encode.compare(element, x, "stochastic", "saturate") != []


def test_posits_rounded_to_the_nearest_value_are_rejected_by_softposit() -> None:
    # The standard rounds the bit string; between far-apart posits that is not the nearest value.
    posit, cast = test_posits.SOFTPOSIT[1]
    x = cases.telling(Posit(8, 1)).astype(np.float64)
    x = x[(np.abs(x) > 2.0**-28) & (np.abs(x) < 2.0**28)]
    theirs = np.array([cast(v) for v in x.tolist()])
    assert np.array_equal(encode(posit, x, "nearest_even", "saturate", None), theirs)
    codes, numbers = cases.real_codes(posit)
    order = np.argsort(numbers)
    middles = (numbers[order][1:] + numbers[order][:-1]) / 2
    x = np.nextafter(middles[:300], 0)
    nearest = codes[order][np.searchsorted(middles, x)]
    assert nearest.tolist() != [cast(v) for v in x.tolist()]


@pytest.mark.parametrize("name", ["fp8_e4m3", "int8", "posit8_0", "fp6_e2m3"])
def test_a_table_with_two_values_exchanged_does_not_come_back(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    element = parse(name)
    assert isinstance(element, Element)
    table = values(element).copy()
    table[[3, 4]] = table[[4, 3]]
    monkeypatch.setattr(test_codes, "values", lambda _: table)
    codes, back = test_codes.round_trip(element)
    assert not np.array_equal(codes, back)


# ---------------------------------------------------------------------------------------------------- blocks


def with_choices(**choices: str) -> Callable[..., tuple[cases.Codes, cases.Codes]]:
    """Return a block quantization that does something else than it is asked for."""

    def quantize(x: cases.Singles, name: str, mode: str) -> tuple[cases.Codes, cases.Codes]:
        fmt = parse(name)
        parts = fb.quantize(x, fmt, **{"scale_rule": mode, **choices}).parts()
        assert parts.scales is not None
        return parts.codes, parts.scales

    return quantize


WRONG_BLOCKS = {
    "ties away": (with_choices(rounding="nearest_away"), "ties"),
    "scale one too large": (with_choices(scale_rule="double_floor"), "every exponent"),
    "ceil in place of floor": (with_choices(scale_rule="ceil"), "every exponent"),
    "scale of zeros one": (with_choices(zero_block="one"), "zeros"),
}


@pytest.mark.parametrize("mistake", WRONG_BLOCKS)
@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp6_e2m3", "mxfp4"])
def test_a_wrong_block_is_rejected_by_torchao(name: str, mistake: str) -> None:
    quantize, kind = WRONG_BLOCKS[mistake]
    x = test_torchao.INPUTS[kind](name)
    assert test_torchao.differences(x, name, "floor").size == 0
    assert test_torchao.differences(x, name, "floor", quantize).size > 0


def by_logarithm(a: cases.Singles, element: Element) -> cases.Codes:
    """Return what many implementations do: floor of a float32 logarithm."""
    return np.floor(np.log2(a.astype(np.float32))).astype(np.int64) - element.emax


def test_an_exponent_from_a_logarithm_is_rejected_by_torchao_and_by_rational_arithmetic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    element = test_scale_rules.ELEMENTS[0]
    x = test_scale_rules.around_thresholds(element)[:3000]
    assert test_scale_rules.differences(element, "floor", x) == []
    assert test_scale_rules.differences(element, "floor", x, by_logarithm) != []
    blocks = test_torchao.INPUTS["around powers of two"]("mxfp8_e4m3")
    monkeypatch.setattr(native, "supports", lambda *_: False)  # the definition is what was sabotaged
    monkeypatch.setattr(lent, "lends", lambda _: False)
    monkeypatch.setattr(scales, "exponent", lambda a, e, _: by_logarithm(a, e))
    assert test_torchao.differences(blocks, "mxfp8_e4m3", "floor").size > 100


@pytest.mark.parametrize("rule", cases.SCALE_RULES)
def test_every_scale_rule_passed_off_as_another_is_rejected(rule: str) -> None:
    element = test_scale_rules.ELEMENTS[4]  # E2M1, where `even` and `1.75` are one rule, and `midmax` nearly
    x = test_scale_rules.around_thresholds(element)[:700]
    for other in cases.SCALE_RULES:
        differ = test_scale_rules.differences(
            element, rule, x, lambda a, e, other=other: exponent(a, e, other)
        )
        assert (differ == []) == (other == rule or {rule, other} == {"even", "1.75"})


def test_a_shift_of_a_pair_with_one_large_value_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    fmt = Bdr(7)

    def smallest_decides(x: cases.Reals, exponent: cases.Codes, bdr: Bdr) -> cases.Codes:
        small = np.abs(x).reshape(*x.shape[:-1], -1, bdr.k2).min(axis=-1)
        e2 = np.frexp(small)[1] - 1
        return np.clip(np.repeat(exponent, bdr.k1 // bdr.k2, -1) - e2, 0, 1).astype(np.uint8)

    monkeypatch.setattr(scales, "_shifts", smallest_decides)
    with pytest.raises(AssertionError):
        test_quantize.test_bdr_follows_the_papers_formula_on_values_well_inside_the_range()
    with pytest.raises(AssertionError):
        test_quantize.test_bdr_shifts_a_pair_by_one_iff_both_lie_below_the_top_binade(fmt, "floor")


def test_elements_divided_by_half_their_scale_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    divide = scales._divide_by_power
    monkeypatch.setattr(scales, "_divide_by_power", lambda x, e: divide(x, e - 1))
    fmt = parse("mxfp4")
    assert isinstance(fmt, Block)
    with pytest.raises(AssertionError):
        test_quantize.test_elements_under_a_power_of_two_are_the_exactly_divided_values_rounded_once(
            fmt, "nearest_even"
        )


def test_the_high_half_of_the_byte_first_is_rejected_by_the_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(codes: cases.Codes, bits: int) -> cases.Codes:
        low_first = pack(codes, bits)
        return low_first >> 4 | low_first << 4

    monkeypatch.setattr(test_vectors, "pack", swapped)
    with pytest.raises(AssertionError):
        test_vectors.test_mxfp4_gives_the_bytes_of_hardware()


def test_an_implicit_decoding_bias_off_by_one_is_rejected_by_the_specification() -> None:
    off = Float(4, 3, 8, "fn")
    assert decode(off, np.array([0x7E])).tolist() == [224]
    assert decode(Float(4, 3, 7, "fn"), np.array([0x7E])).tolist() == [448]


# ------------------------------------------------------------------------------------------------ randomness


@pytest.mark.parametrize(("name", "wrong"), [("ROTATIONS", threefry.ROTATIONS[::-1]), ("ROUNDS", 12)])
def test_a_threefry_with_other_constants_is_rejected_by_the_known_answers(
    name: str, wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threefry, name, wrong)
    with pytest.raises(AssertionError):
        test_threefry.test_threefry_gives_the_known_answers(*test_threefry.KNOWN[1])


def test_draws_by_order_of_work_show_the_size_of_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    fmt: Format = parse("int8")
    chosen = kernels.options(fmt, rounding="stochastic", seed=1)
    monkeypatch.setattr(native, "supports", lambda *_: False)
    monkeypatch.setattr(conversions, "_positions", lambda *_: None)
    whole = kernels.fake_quantize(x, fmt, -1, chosen)
    monkeypatch.setattr(conversions, "_CHUNK", 64)
    assert not np.array_equal(kernels.fake_quantize(x, fmt, -1, chosen), whole)
