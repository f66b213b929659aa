"""Block quantization against torchao, bit for bit: codes and scales, for every OCP MX format and rule that
it has.

Three of its habits are set apart here:

* It divides by no scale below 2^-126 (floor, ceil, even) or does not divide at all (rceil) where the scale's
  code is 0, 2^-127. The scale is the right one; the elements of those blocks are compared with exact
  arithmetic instead.
* Its rceil takes a logarithm in float32, which can miss a value just above a power of two. Where the two
  differ, exact rational arithmetic decides.
* Versions of it turn finite blocks above 2^128 (1 - 2^-(m+2)) into NaN under even, because the rounded
  maximum is infinite: such blocks are left out there, and ours must be finite.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits.formats import Block, parse, values
from tests import cases
from tests.conformance.torchao_mx import MODES, NAMES, to_mx
from tests.kernels.exact import exact


def mx(name: str) -> Block:
    """Return a format of the catalogue as the block it is."""
    fmt = parse(name)
    assert isinstance(fmt, Block)
    return fmt


def ours(x: cases.Singles, name: str, mode: str) -> tuple[cases.Codes, cases.Codes]:
    """Return (codes, scale codes) of ``x``."""
    fmt = mx(name)
    parts = fb.quantize(x, fmt, scale_rule=mode).parts()
    assert parts.scales is not None
    return parts.codes, parts.scales


def differences(x: cases.Singles, name: str, mode: str, quantize: Any = ours) -> cases.Codes:
    """Return the rows of ``x`` that differ; the must-fail tests pass a quantization of their own."""
    codes, scales = quantize(x, name, mode)
    their_codes, their_scales = to_mx(torch.from_numpy(x), name, mode)
    scale_differs = (scales != their_scales).any(axis=-1)
    # Elements under the scale 2^-127 are another test.
    seen = scales != 0
    element_differs = ((codes != their_codes).reshape(*scales.shape, 32).any(axis=-1) & seen).any(axis=-1)
    return np.flatnonzero(scale_differs | element_differs)


def below_powers_of_two(mx_max: float) -> cases.Singles:
    """Return blocks with maxima just below, at and above every power of two, and M times one."""
    rng = np.random.default_rng(11)
    powers = np.exp2(np.arange(-126, 128).astype(np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        centers = np.concatenate([powers, powers * mx_max]).astype(np.float32)
    centers = centers[np.isfinite(centers)]
    near = np.arange(-45, 9, dtype=np.int64)
    bits = (centers.view(np.int32)[:, None].astype(np.int64) + near).reshape(-1)
    top = bits[(bits >= 0) & (bits < 0x7F800000)].astype(np.uint32).view(np.float32)
    x = (rng.uniform(-1, 1, (top.size, 32)) * top[:, None]).astype(np.float32)
    x[np.arange(top.size), rng.integers(0, 32, top.size)] = top
    return x


def ties(name: str) -> cases.Singles:
    """Return blocks that hold every middle between neighbours of the element format, at every scale."""
    fmt = mx(name)
    numbers = np.unique(cases.real_codes(fmt.element)[1])
    numbers = numbers[np.isfinite(numbers)]
    middles = (numbers[1:] + numbers[:-1]) / 2
    values = np.resize(middles, -(-middles.size // 31) * 31).reshape(-1, 31)
    rows = np.concatenate([np.full((len(values), 1), fmt.element.max), values], axis=1)
    scales = np.exp2(np.arange(-126, 127 - fmt.element.emax).astype(np.float64))
    with np.errstate(under="ignore"):
        return (scales[:, None, None] * rows).reshape(-1, 32).astype(np.float32)


def subnormals() -> cases.Singles:
    """Return blocks of float32 subnormals, and mixed ones."""
    rng = np.random.default_rng(12)
    small = rng.integers(0, 2**23, (2000, 32), dtype=np.uint32) >> rng.integers(
        0, 23, (2000, 1), dtype=np.uint32
    )
    signed = small | rng.integers(0, 2, small.shape, dtype=np.uint32) << 31
    x = signed.view(np.float32)
    x[::2, 0] = np.exp2(rng.integers(-126, -100, 1000).astype(np.float64))
    return x


def largest() -> cases.Singles:
    """Return blocks around the largest float32."""
    rng = np.random.default_rng(13)
    bits = 0x7F7FFFFF - rng.integers(0, 2**24, (2000, 32), dtype=np.uint32)
    return (bits | rng.integers(0, 2, bits.shape, dtype=np.uint32) << 31).view(np.float32)


def zeros() -> cases.Singles:
    """Return a block of zeros of both signs, and zeros beside one value."""
    x = np.zeros((3, 32), np.float32)
    x[1:, ::2] = -0.0
    x[2, 5] = 1.0
    return x


INPUTS = {
    "every exponent": lambda name: cases.blocks(20_000, 32, seed=21),
    "around powers of two": lambda name: below_powers_of_two(
        mx(name).element.max / 2.0 ** mx(name).element.emax
    ),
    "ties": ties,
    "subnormals": lambda name: subnormals(),
    "largest": lambda name: largest(),
    "zeros": lambda name: zeros(),
}


def not_nan_in_even(x: cases.Singles, name: str) -> cases.Singles:
    """Leave out the blocks that torchao's even rule makes NaN."""
    m = mx(name).element.mantissa_bits
    return x[np.abs(x).max(axis=-1) < 2.0**128 * (1 - 2.0 ** -(m + 2))]


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "rceil"])
@pytest.mark.parametrize("name", NAMES)
def test_codes_and_scales_equal_torchao(name: str, mode: str, kind: str) -> None:
    x = INPUTS[kind](name)
    x = not_nan_in_even(x, name) if mode == "even" else x
    assert differences(x, name, mode).size == 0


def smallest_that_holds(amax: float, largest_element: float) -> int:
    """Return the code of the smallest power of two with amax <= largest_element x 2^e, by fractions."""
    e = math.frexp(amax)[1] - math.frexp(largest_element)[1] - 1
    while Fraction(largest_element) * Fraction(2) ** e < Fraction(amax):
        e += 1
    return min(max(e, -127), 127) + 127


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", NAMES)
def test_rceil_equals_torchao_except_where_its_logarithm_rounds_and_exact_arithmetic_sides_with_us(
    name: str, kind: str
) -> None:
    x = INPUTS[kind](name)
    rows = differences(x, name, "rceil")
    _, scales = ours(x[rows], name, "rceil")
    _, theirs = to_mx(torch.from_numpy(x[rows]), name, "rceil")
    element = mx(name).element
    for row, scale, their in zip(x[rows], scales[:, 0], theirs[:, 0], strict=True):
        amax = float(np.abs(row).max())
        assert scale == smallest_that_holds(amax, element.max)
        assert scale != their
        quotient = amax / element.max
        power = 2.0 ** np.round(np.log2(quotient))
        assert abs(quotient / power - 1) < 1e-5  # beside a power of two, and nowhere else
    assert rows.size == 0 or kind == "around powers of two"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_every_finite_bfloat16_in_random_blocks_equals_torchao(name: str, mode: str) -> None:
    x = cases.every_bfloat16()
    x = x[np.isfinite(x)]
    order = np.random.default_rng(5).permutation(x.size)
    shuffled = np.concatenate([x[order], np.sort(x)])[: 2 * x.size // 32 * 32].reshape(-1, 32)
    shuffled = not_nan_in_even(shuffled, name) if mode == "even" else shuffled
    narrow = torch.from_numpy(shuffled).bfloat16()
    codes, scales = ours(shuffled, name, mode)
    their_codes, their_scales = to_mx(narrow, name, mode)
    assert np.array_equal(scales, their_scales)
    seen = np.repeat(scales != 0, 32, axis=-1)
    assert np.array_equal(codes[seen], their_codes[seen])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_elements_under_the_smallest_scale_equal_exact_arithmetic(name: str, mode: str) -> None:
    x = subnormals()[:60]
    codes, scales = ours(x, name, mode)
    seen = scales[:, 0] == 0
    assert seen.sum() >= 20
    by_hand = exact(mx(name).element)
    expected = [
        [by_hand.code(v * 2.0**127, "nearest_even", "saturate") for v in row] for row in x[seen].tolist()
    ]
    assert codes[seen].tolist() == expected


@pytest.mark.parametrize("name", NAMES)
def test_the_largest_finite_block_stays_finite_under_even(name: str) -> None:
    x = np.full((1, 32), np.finfo(np.float32).max, np.float32)
    codes, scales = ours(x, name, "even")
    element = mx(name).element
    assert scales[0, 0] == 127 + 128 - element.emax
    assert np.all(values(element)[codes] == 2.0**element.emax)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_a_block_that_holds_nan_has_the_scale_0xff_in_both(name: str, mode: str) -> None:
    x = cases.blocks(64, 32, seed=4)
    x[:, 3] = np.nan
    assert np.all(ours(x, name, mode)[1] == 0xFF)
    assert np.all(to_mx(torch.from_numpy(x), name, mode)[1] == 0xFF)
