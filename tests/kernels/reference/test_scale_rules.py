"""Each of the eight scale rules against its definition in rational arithmetic, around each threshold."""

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest

import fewbits as fb
from fewbits.formats import Block, Element, Exponent, Fixed, Float, Lookup, Posit, parse
from fewbits.kernels.reference import SCALE_RULES
from tests import cases

ELEMENTS: tuple[Element, ...] = (
    *(fmt.element for name in ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4", "mxint8")
      if isinstance(fmt := parse(name), Block)),
    Fixed(4, 2, "sign_magnitude"),
    Posit(8, 1),
    Lookup((-0.7, 0.0, 0.3, 1.3)),
)  # fmt: skip


def floor_log2(a: Fraction) -> int:
    """Return the largest e with 2^e <= a."""
    e = a.numerator.bit_length() - a.denominator.bit_length()
    return e if Fraction(2) ** e <= a else e - 1


def rounded(a: Fraction, bits: int, emin: int) -> Fraction:
    """Return ``a`` rounded to a float of ``bits`` significant bits, ties to even; no upper bound."""
    step = Fraction(2) ** (max(floor_log2(a), emin) - bits + 1)
    count, rest = divmod(a, step)
    return step * (count + (2 * rest > step or (2 * rest == step and count % 2 == 1)))


def _mantissa(element: Element) -> int:
    return element.mantissa_bits if isinstance(element, Float | Fixed) else 0


def _after_adding(a: Fraction, part: Fraction, e: Element) -> int:
    binade = max(floor_log2(a), -126)  # the bits of a subnormal float32 count in units of the smallest binade
    return floor_log2(a + part * Fraction(2) ** binade) - e.emax


def _smallest(holds: Callable[[int], bool], start: int) -> int:
    e = start
    while not holds(e):
        e += 1
    return e


def _oas(a: Fraction, e: Element) -> int | None:
    """Every step rounds as float32 does; None where nothing is left."""
    m = _mantissa(e)
    factor = rounded(2 * (2 - Fraction(1, 2**m)) / (2 - Fraction(1, 2 ** (m + 1))), 24, -126)
    quotient = rounded(a / rounded(Fraction(e.max), 24, -126), 24, -126)
    scaled = rounded(quotient * factor, 24, -126) if quotient else quotient
    narrow = rounded(scaled, 8, -126) if scaled else scaled
    return floor_log2(narrow) if narrow else None


def defined(rule: str, a: Fraction, e: Element) -> int | None:
    """Return the exponent that a rule means, from its sentence in the literature."""
    largest, k = Fraction(e.max), floor_log2(a)
    match rule:
        case "floor":  # OCP MX v1.0, section 6.3
            return k - e.emax
        case "ceil":
            return _smallest(lambda s: a <= Fraction(2) ** s, k) - e.emax
        case "rceil":  # arXiv 2506.08027: the smallest power of two with which nothing saturates
            return _smallest(lambda s: a <= largest * Fraction(2) ** s, k - e.emax - 2)
        case "even":  # torchao
            return _after_adding(a, Fraction(1, 2 ** (_mantissa(e) + 1)), e)
        case "1.75":  # compressed-tensors
            return _after_adding(a, Fraction(1, 4), e)
        case "midmax":  # Brevitas: past the middle between the largest element and the next power of two
            top = largest / Fraction(2) ** e.emax
            return k - e.emax + (a > (top + 2) / 2 * Fraction(2) ** k)
        case "oas":  # Qwix
            return _oas(a, e)
        case "double-floor":  # AWS Neuron
            return k - e.emax + 1
    raise AssertionError(rule)


@lru_cache(maxsize=16)
def around_thresholds(element: Element) -> cases.Singles:
    """Return, shuffled, float32 around each power of two times each significand where a rule changes."""
    m = _mantissa(element)
    top = element.max / 2.0**element.emax
    factor = (2 - 2.0 ** -(m + 1)) / (2 * (2 - 2.0**-m))
    significands = np.array(
        [1, 1.5, 1.75, top, 2 - 2.0 ** -(m + 1), (top + 2) / 2, top * factor, 2 * top * factor]
    )
    with np.errstate(over="ignore", under="ignore"):
        centers = (np.exp2(np.arange(-149, 128).astype(np.float64))[:, None] * significands).ravel()
        x = np.unique(np.abs(cases.around(centers[centers < 3.4e38])))
    x = x[(x > 0) & np.isfinite(x)]
    return x[np.random.default_rng(0).permutation(x.size)]  # so that any part of it is a fair sample


def around_bfloat16_ties(x: cases.Singles) -> cases.Singles:
    """Return ``x`` and ``x`` moved by half a bfloat16: where the rounding inside `oas` changes."""
    moved = np.concatenate([(x * (1 - 2.0**-9)).astype(np.float32), (x * (1 + 2.0**-9)).astype(np.float32)])
    return np.concatenate([x, moved[(moved > 0) & np.isfinite(moved)]])


def differences(element: Element, rule: str, x: cases.Singles, choose=None) -> list[float]:  # type: ignore[no-untyped-def]
    """Return the maxima whose scale differs from the definition; must-fail tests pass their own rule."""
    found = (choose or SCALE_RULES[rule])(x, element).tolist()
    wrong = []
    for a, exponent in zip(x.tolist(), found, strict=True):
        expected = defined(rule, Fraction(a), element)
        # Beyond every scale is beyond: -1000 and 1000 stand for what left float32.
        expected = -1000 if expected is None else expected
        e = min(exponent, 128) if rule == "oas" else exponent
        if e != (min(expected, 128) if rule == "oas" else expected):
            wrong.append(a)
    return wrong


@pytest.mark.parametrize("rule", cases.SCALE_RULES)
@pytest.mark.parametrize("element", ELEMENTS, ids=cases.label)
def test_a_rule_equals_its_definition_around_every_threshold(element: Element, rule: str) -> None:
    x = around_thresholds(element)[:2500]
    x = around_bfloat16_ties(x[:400]) if rule == "oas" else x
    assert differences(element, rule, x) == []


@pytest.mark.slow
@pytest.mark.parametrize("rule", cases.SCALE_RULES)
@pytest.mark.parametrize("element", ELEMENTS, ids=cases.label)
def test_a_rule_equals_its_definition_around_all_thresholds_without_exception(
    element: Element, rule: str
) -> None:
    x = around_thresholds(element)
    assert differences(element, rule, around_bfloat16_ties(x) if rule == "oas" else x) == []


@pytest.mark.parametrize("rule", cases.SCALE_RULES)
def test_a_rule_equals_its_definition_on_float32_of_every_exponent(rule: str) -> None:
    x = np.abs(cases.every_exponent(1000, seed=8))
    x = x[np.isfinite(x) & (x > 0)]
    for element in ELEMENTS[::4]:
        assert differences(element, rule, x) == []


@pytest.mark.parametrize("rule", [r for r in cases.SCALE_RULES if r not in ("oas", "even", "1.75")])
def test_rules_without_float32_steps_hold_for_float64_down_to_its_subnormals(rule: str) -> None:
    rng = np.random.default_rng(3)
    x = np.ldexp(1 + rng.random(300), rng.integers(-1074, 1023, 300))
    powers = np.exp2(np.arange(-1074, 1024, 7).astype(np.float64))
    x = np.concatenate([x, powers, np.nextafter(powers, 0)[1:], np.nextafter(powers, np.inf)])
    element = ELEMENTS[0]
    assert [
        a
        for a in x.tolist()
        if SCALE_RULES[rule](np.array([a]), element)[0] != defined(rule, Fraction(a), element)
    ] == []


def test_all_rules_in_use_have_a_name() -> None:
    assert tuple(SCALE_RULES) == cases.SCALE_RULES


@pytest.mark.parametrize("rule", cases.SCALE_RULES)
@pytest.mark.parametrize("fmt", [f for f in cases.POWER_SCALED if isinstance(f, Block)], ids=cases.label)
def test_the_scale_of_a_block_is_the_rule_clamped_to_what_the_scale_can_hold(fmt: Block, rule: str) -> None:
    x = around_thresholds(fmt.element if fmt.element in ELEMENTS else ELEMENTS[0])
    single = Block(fmt.element, fmt.scale, 1)
    parts = fb.quantize(x, single, scale_rule=rule).parts()
    scale = fmt.scale
    assert isinstance(scale, Exponent)
    expected = np.clip(SCALE_RULES[rule](x, fmt.element), scale.emin, scale.emax) + scale.bias
    assert np.array_equal(parts.scales, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_logarithm_in_floating_point_is_wrong_just_below_powers_of_two(dtype: type) -> None:
    # The negative control: why exponents come from bits.
    powers = np.exp2(np.arange(-100, 127).astype(np.float64)).astype(dtype)
    below = np.nextafter(powers, dtype(0))
    right = np.frexp(below)[1] - 1
    by_logarithm = np.floor(np.log2(below)).astype(np.int64)
    assert np.count_nonzero(by_logarithm != right) > 100
    assert np.array_equal(SCALE_RULES["floor"](below, ELEMENTS[5]), right)


def test_rceil_never_saturates_and_one_power_lower_always_would() -> None:
    for element in ELEMENTS:
        x = around_thresholds(element).astype(np.float64)
        e = SCALE_RULES["rceil"](x, element)
        assert np.all(np.ldexp(x, -e) <= element.max)
        assert np.all(np.ldexp(x, 1 - e) > element.max)


def _rounded_up(quotient: cases.Singles) -> cases.Codes:
    """Return the exponent of the smallest power of two that is not below a float32, from its bits."""
    bits = quotient.view(np.int32)
    return (bits >> 23) - 127 + (bits & 0x7FFFFF != 0)


@pytest.mark.parametrize("element", ELEMENTS[:6], ids=cases.label)
def test_a_float32_quotient_gives_rceil_for_every_significand_and_a_reciprocal_only_for_the_ocp_floats(
    element: Element,
) -> None:
    # Kernels that multiply by float32(1 / M) miss one significand of INT8: 127/64 has no such luck.
    x = np.arange(0x3F800000, 0x40000000, dtype=np.uint32).view(np.float32)
    exactly = SCALE_RULES["rceil"](x, element)
    largest = np.float32(element.max)
    assert np.array_equal(_rounded_up(x / largest), exactly)
    missed = np.count_nonzero(_rounded_up(x * (np.float32(1) / largest)) != exactly)
    assert missed == isinstance(element, Fixed)
