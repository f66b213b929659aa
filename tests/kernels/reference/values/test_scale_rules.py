"""Each of the eight scale rules against its definition in rational arithmetic, around each threshold."""

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits.formats import Bdr, Block, Element, Exponent, Fixed, Float, Lookup, Posit, parse
from fewbits.kernels import native
from fewbits.kernels.bits.scale_rules import SCALE_RULES
from fewbits.kernels.reference.values.scales import exponent
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


def _mantissa(element: Element) -> int:
    return element.mantissa_bits if isinstance(element, Float | Fixed) else 0


def _up_from(a: Fraction, part: Fraction, e: Element) -> int:
    """Return the exponent after adding a part of its own binade to ``a``."""
    return floor_log2(a + part * Fraction(2) ** floor_log2(a)) - e.emax


def _smallest(holds: Callable[[int], bool], start: int) -> int:
    e = start
    while not holds(e):
        e += 1
    return e


def _oas(a: Fraction, e: Element) -> int:
    m = _mantissa(e)
    scaled = a / Fraction(e.max) * 2 * (2 - Fraction(1, 2**m)) / (2 - Fraction(1, 2 ** (m + 1)))
    step = Fraction(2) ** (floor_log2(scaled) - 7)  # of eight significant bits
    return floor_log2(round(scaled / step) * step)  # Python rounds fractions to nearest even


def defined(rule: str, a: Fraction, e: Element) -> int:
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
            return _up_from(a, Fraction(1, 2 ** (_mantissa(e) + 1)), e)
        case "1.75":  # compressed-tensors
            return _up_from(a, Fraction(1, 4), e)
        case "midmax":  # Brevitas: past the middle between the largest element and the next power of two
            top = largest / Fraction(2) ** e.emax
            return k - e.emax + (a > (top + 2) / 2 * Fraction(2) ** k)
        case "oas":  # Qwix
            return _oas(a, e)
        case "double_floor":  # AWS Neuron
            return k - e.emax + 1
    raise AssertionError(rule)


@lru_cache(maxsize=16)
def around_thresholds(element: Element) -> cases.Singles:
    """Return, shuffled, float32 around each power of two times each significand where a rule changes."""
    m = _mantissa(element)
    top = element.max / 2.0**element.emax
    factor = (2 - 2.0 ** -(m + 1)) / (2 * (2 - 2.0**-m)) * (1 - 2.0**-9)
    significands = np.array(
        [1, 1.5, 1.75, top, 2 - 2.0 ** -(m + 1), (top + 2) / 2, top * factor, 2 * top * factor]
    )
    with np.errstate(over="ignore", under="ignore"):
        centers = (np.exp2(np.arange(-149, 128).astype(np.float64))[:, None] * significands).ravel()
        x = np.unique(np.abs(cases.around(centers[centers < 3.4e38])))
    x = x[(x > 0) & np.isfinite(x)]
    return x[np.random.default_rng(0).permutation(x.size)]  # so that any part of it is a fair sample


def differences(element: Element, rule: str, x: cases.Singles, choose: Any = None) -> list[float]:
    """Return the maxima whose scale differs from the definition; must-fail tests pass their own rule."""
    found = (choose(x, element) if choose else exponent(x, element, rule)).tolist()
    return [a for a, e in zip(x.tolist(), found, strict=True) if e != defined(rule, Fraction(a), element)]


@pytest.mark.parametrize("rule", cases.SCALE_RULES)
@pytest.mark.parametrize("element", ELEMENTS, ids=cases.label)
def test_a_rule_equals_its_definition_around_every_threshold(element: Element, rule: str) -> None:
    assert differences(element, rule, around_thresholds(element)[:2500]) == []


@pytest.mark.slow
@pytest.mark.parametrize("rule", cases.SCALE_RULES)
@pytest.mark.parametrize("element", ELEMENTS, ids=cases.label)
def test_a_rule_equals_its_definition_around_all_thresholds_without_exception(
    element: Element, rule: str
) -> None:
    assert differences(element, rule, around_thresholds(element)) == []


@pytest.mark.parametrize("rule", cases.SCALE_RULES)
def test_a_rule_equals_its_definition_on_float32_of_every_exponent(rule: str) -> None:
    x = np.abs(cases.every_exponent(1000, seed=8))
    x = x[np.isfinite(x) & (x > 0)]
    for element in ELEMENTS[::4]:
        assert differences(element, rule, x) == []


@pytest.mark.parametrize("rule", cases.SCALE_RULES)
@pytest.mark.parametrize("element", ELEMENTS[::3], ids=cases.label)
def test_a_rule_equals_its_definition_on_float64_down_to_its_subnormals(element: Element, rule: str) -> None:
    rng = np.random.default_rng(3)
    x = np.ldexp(1 + rng.random(300), rng.integers(-1074, 1023, 300))
    powers = np.exp2(np.arange(-1074, 1024, 7).astype(np.float64))
    x = np.concatenate([x, powers, np.nextafter(powers, 0)[1:], np.nextafter(powers, np.inf)])
    assert differences(element, rule, x) == []


@lru_cache(maxsize=4)
def ends(dtype: str) -> torch.Tensor:
    """Return magnitudes of a type: subnormals of every exponent, the smallest normal ones, the top binade.

    Each binade has the significands around which some rule changes, as near as the type can hold them.
    """
    bits, bias, emin = {"float16": (10, 15, -14), "bfloat16": (7, 127, -126), "float32": (23, 127, -126),
                        "float64": (52, 1023, -1022)}[dtype]  # fmt: skip
    steps = {r(e).step for r in SCALE_RULES.values() for e in ELEMENTS}
    found = set()
    for k in (*range(emin - bits, emin + 3), bias - 1, bias):
        grid = Fraction(2) ** (max(k, emin) - bits)
        for step in (Fraction(1), Fraction(3, 2), *steps):
            count = int(step * Fraction(2) ** k / grid)
            found |= {(count + i) * grid for i in (-1, 0, 1, 2)}
    largest = (2 - Fraction(1, 2**bits)) * Fraction(2) ** bias
    exact = torch.tensor([float(a) for a in sorted(found) if 0 < a <= largest], dtype=torch.float64)
    return exact.to(getattr(torch, dtype)).unique()


# Every kind of element in blocks, and BDR; elements far below and above one bring the scale of the ends of a
# type into the scale's own range.
KINDS = (
    "mxfp8_e4m3", "mxint8", "msfp12", "mx6", "bdr(m=3,d1=8,k1=4,d2=2,k2=2)",
    "block(element=float(e=2,m=1,bias=60),scale=e8m0,size=4)",
    "block(element=float(e=4,m=3,bias=-30,special=fn),scale=e8m0,size=4)",
    "block(element=fixed(6,frac=40,coding=symmetric),scale=e8m0,size=4)",
    "block(element=fixed(9,frac=-40),scale=exponent(7,bias=20),size=4)",
    "block(element=posit(8,es=1),scale=e8m0,size=4)",
    "block(element=lookup(-0.7,0,0.3,1.3),scale=e8m0,size=4)",
    "block(element=lookup(-3e-20,0,1e-20,2.5e-20),scale=e8m0,size=4)",
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("rule", cases.SCALE_RULES)
def test_the_scale_of_the_smallest_and_the_largest_values_of_every_type_is_exact(
    rule: str, dtype: str
) -> None:
    x = ends(dtype)
    x = x[:: max(len(x) // 250, 1)]
    a = x.double().numpy()
    for name in KINDS:
        fmt = parse(name)
        assert isinstance(fmt, Block | Bdr)
        assert isinstance(fmt.scale, Exponent)
        wanted = [defined(rule, Fraction(v), fmt.element) for v in a.tolist()]
        expected = np.clip(wanted, fmt.scale.emin, fmt.scale.emax) + fmt.scale.bias
        one_block_each = torch.stack([x, -x / 4, x / 2], 1)
        try:
            for isa in native.available_isas():
                native.force_isa(isa)
                scales = fb.quantize(one_block_each, fmt, scale_rule=rule).parts().scales
                assert scales is not None
                wrong = np.flatnonzero(scales[:, 0] != expected)
                assert [float(a[i]).hex() for i in wrong] == [], (name, isa)
        finally:
            native.force_isa(None)


@pytest.mark.parametrize("rule", cases.SCALE_RULES)
def test_twice_the_values_have_twice_the_scale(rule: str) -> None:
    for element in ELEMENTS:
        x = around_thresholds(element)
        x = x[(x < 1e38) & (x > 0)]
        assert np.array_equal(exponent(2 * x, element, rule), exponent(x, element, rule) + 1)
        assert np.array_equal(exponent(x.astype(np.float64), element, rule), exponent(x, element, rule))


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
    expected = np.clip(exponent(x, fmt.element, rule), scale.emin, scale.emax) + scale.bias
    assert np.array_equal(parts.scales, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_logarithm_in_floating_point_is_wrong_just_below_powers_of_two(dtype: type) -> None:
    # The negative control: why exponents come from bits.
    powers = np.exp2(np.arange(-100, 127).astype(np.float64)).astype(dtype)
    below = np.nextafter(powers, dtype(0))
    right = np.frexp(below)[1] - 1
    by_logarithm = np.floor(np.log2(below)).astype(np.int64)
    assert np.count_nonzero(by_logarithm != right) > 100
    assert np.array_equal(exponent(below, ELEMENTS[5], "floor"), right)


def test_rceil_never_saturates_and_one_power_lower_always_would() -> None:
    for element in ELEMENTS:
        x = around_thresholds(element).astype(np.float64)
        e = exponent(x, element, "rceil")
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
    exactly = exponent(x, element, "rceil")
    largest = np.float32(element.max)
    assert np.array_equal(_rounded_up(x / largest), exactly)
    missed = np.count_nonzero(_rounded_up(x * (np.float32(1) / largest)) != exactly)
    assert missed == isinstance(element, Fixed)
