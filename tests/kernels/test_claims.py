"""What docs/rules.md says of saturation, products and Transformer Engine's NVFP4, held against them."""

from fractions import Fraction

import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits import kernels
from fewbits.formats import CATALOGUE, Bdr, Block, Element, Format, decode, parse, values
from tests import cases

F32 = np.float32
MOST = np.finfo(F32).max
SYMMETRIC = [f for f in cases.POWER_SCALED if isinstance(f, Block) and f.element.min <= -f.element.max]
DATA_REPRESENTATIONS = [*(f for f in cases.POWER_SCALED if isinstance(f, Bdr)), Bdr(3, 8, 12, 2, 3), Bdr(1)]


def blocks_within_the_scale() -> cases.Singles:
    """Return lines of blocks of every scale but those at the ends of E8M0."""
    x = cases.blocks(400, 48, seed=2)
    largest = np.abs(x).max(axis=1)
    return x[(largest < 2.0**120) & (largest > 2.0**-100)]


@pytest.mark.parametrize("fmt", SYMMETRIC, ids=cases.label)
def test_rceil_saturates_nothing_in_a_block_format(fmt: Block) -> None:
    x = blocks_within_the_scale()
    assert (np.abs(x) <= kernels.limits(x, fmt, 1, kernels.options(fmt, scale_rule="rceil"))).all()
    assert (np.abs(x) > kernels.limits(x, fmt, 1, kernels.options(fmt))).any()


@pytest.mark.parametrize("fmt", DATA_REPRESENTATIONS, ids=cases.label)
def test_rceil_takes_less_than_a_step_of_a_pair_in_a_data_representation(fmt: Bdr) -> None:
    x = blocks_within_the_scale()
    limits = kernels.limits(x, fmt, 1, kernels.options(fmt, scale_rule="rceil"))
    excess = np.abs(x) - limits
    assert (excess < limits / fmt.element.max * fmt.element.smallest_normal).all()
    assert (excess > 0).any()


def significant_bits(fmt: Format) -> int:
    """Return how many bits an element, its scale and its outer scale have at most together."""
    groups = (fmt.groups.codes, fmt.groups.scales, fmt.groups.outer)
    return sum(bits_of(group.element) for group in groups if group is not None)


def bits_of(element: Element) -> int:
    """Return how many significant bits the values of an element have at most."""
    if element.grid is not None:
        return element.grid.mantissa_bits + 1
    numbers = values(element)
    fractions = np.frexp(numbers[np.isfinite(numbers)])[0]
    return next(bits for bits in range(1, 54) if (np.ldexp(fractions, bits) % 1 == 0).all())


def test_products_with_scales_fit_into_float64_in_the_catalogue_and_not_in_every_format() -> None:
    assert max(significant_bits(entry.format) for entry in CATALOGUE.values()) <= 53
    mine = parse("block(element=lookup(-1,0,0.1,1),scale=fp32,size=4)")
    assert significant_bits(mine) > 53
    q = fb.quantize(torch.tensor([0.1, 1.0, 0.0, -1.0]) / 3, mine)
    found, scale = (Fraction(x) for x in q.to(torch.float64).dequantize()[:2].tolist())
    assert found != Fraction(0.1) * scale
    assert float(found) == 0.1 * float(scale)


def by_transformer_engine(x: cases.Singles) -> tuple[cases.Singles, cases.Singles]:
    """Return scales and values before FP4, by the float32 operations of its reference quantizer."""
    gain = min(F32(448) * F32(6) / np.abs(x).max(), MOST)
    largest = np.abs(x).reshape(len(x), -1, 16).max(axis=2)
    wanted = np.minimum(largest * (gain * (F32(1) / F32(6))), F32(448))
    scales = fb.fake_quantize(wanted, "fp8_e4m3")
    with np.errstate(divide="ignore"):
        inverse = np.minimum(F32(1) / (scales * (F32(1) / gain)), MOST)
    return scales, np.clip(x * np.repeat(inverse, 16, axis=1), F32(-6), F32(6))


@pytest.mark.parametrize("bits", [23, 7], ids=["float32", "bfloat16"])
def test_nvfp4_differs_from_transformer_engine_where_the_page_says(bits: int) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((200, 160)) * np.exp2(rng.integers(-9, 3, (200, 1)))).astype(F32)
    x = (x.view(np.uint32) & np.uint32(2**32 - 2 ** (23 - bits))).view(F32)
    x[3, 16:32] *= F32(1e-9)
    scales, before = by_transformer_engine(x)
    q = fb.quantize(x, "nvfp4").parts()
    assert q.scales is not None
    nvfp4 = fb.format("nvfp4")
    assert isinstance(nvfp4, Block)
    ours = decode(nvfp4.scale, q.scales)
    assert (ours[scales > 0] == scales[scales > 0]).all()
    assert (ours[scales == 0] == 2.0**-9).all()
    assert (scales == 0).sum() == 1
    mine, theirs = decode(nvfp4.element, q.codes), fb.fake_quantize(before, "fp4_e2m1")
    other = (mine != theirs) & np.repeat(scales > 0, 16, axis=1)
    assert other.mean() < 0.02
    # Where they differ the value lies on a tie between neighbours, but for the roundings of float32.
    assert np.allclose(before[other], (mine + theirs)[other] / 2, rtol=2.0**-21, atol=0)
    magnitudes = np.unique(np.abs(values(nvfp4.element)))
    places = [np.searchsorted(magnitudes, np.abs(y[other])) for y in (mine, theirs)]
    assert (np.abs(places[0] - places[1]) == 1).all()
