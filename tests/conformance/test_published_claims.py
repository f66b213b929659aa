"""What With Shared Microexponents (ISCA 2023) claims of its formats, measured: section 4 and theorem 1."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fewbits as fb
from fewbits.formats import Bdr, area_memory_proxy, parse
from fewbits.metrics import qsnr_lower_bound

SEEDS = (0, 1, 2)
BDR = ("mx9", "mx6", "mx4")


def variable_variance_gaussian(seed: int, vectors: Any = 10_000, length: Any = 32) -> Any:
    """The paper's test distribution: each vector N(0, s^2), its own s drawn from |N(0, 1)|."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((vectors, length)) * np.abs(rng.standard_normal((vectors, 1)))).astype(
        np.float32
    )


@cache
def decibels(name: str) -> Any:
    """QSNR over three seeds: (smallest, largest)."""
    found = [fb.qsnr(x, fb.fake_quantize(x, name)) for x in map(variable_variance_gaussian, SEEDS)]
    return min(found), max(found)


def test_mx9_qsnr_is_15_db_above_per_tensor_e4m3() -> None:
    assert decibels("mx9")[0] - decibels("fp8_e4m3_tensor")[1] >= 15


def test_mx6_qsnr_lies_between_e5m2_and_e4m3() -> None:
    low, high = decibels("mx6")
    assert decibels("fp8_e5m2_tensor")[1] < low <= high < decibels("fp8_e4m3_tensor")[0]


def test_the_three_seeds_agree_far_better_than_the_claims_are_wide() -> None:
    for name in ("mx9", "mx6", "fp8_e4m3_tensor", "fp8_e5m2_tensor"):
        low, high = decibels(name)
        assert high - low < 0.3, name


# Calibrated figures in dB: Gaussian, Gaussian of variable variance, Laplace.
TABLE = (
    ("mx9", 46.5, 46.6, 45.5),
    ("mx6", 28.3, 28.4, 27.3),
    ("mx4", 15.7, 15.8, 15.0),
    ("msfp16", 42.8, 43.0, 41.5),
    ("msfp12", 18.6, 18.8, 17.4),
    ("fp8_e4m3_tensor", 31.5, 31.5, 31.6),
    ("fp8_e5m2_tensor", 25.6, 25.6, 25.6),
    ("mxfp8_e4m3", 30.6, 30.5, 30.0),
    ("mxfp8_e5m2", 25.4, 25.4, 25.2),
    ("mxfp6_e3m2", 25.4, 25.4, 25.2),
    ("mxfp6_e2m3", 30.9, 31.0, 30.3),
    ("mxfp4", 18.8, 18.7, 17.9),
    ("mxint8", 41.7, 42.0, 40.0),
)


@pytest.mark.parametrize(("name", "gaussian", "variable", "laplace"), TABLE, ids=[row[0] for row in TABLE])
def test_qsnr_on_known_distributions_is_within_0_3_db_of_the_calibrated_table(
    name: str, gaussian: Any, variable: Any, laplace: Any
) -> None:
    rng = np.random.default_rng(7)
    expected = (
        (rng.standard_normal((4000, 256)), gaussian),
        (variable_variance_gaussian(7, 4000, 256), variable),
        (rng.laplace(size=(4000, 256)), laplace),
    )
    for values, decibels_expected in expected:
        x = values.astype(np.float32)
        assert fb.qsnr(x, fb.fake_quantize(x, name)) == pytest.approx(decibels_expected, abs=0.3)


def qsnr_of_block(fmt: Any, block: Any) -> Any:
    return fb.qsnr(block, fb.fake_quantize(block, fmt))


mantissas = st.integers(-(2**12), 2**12)
exponents = st.integers(-12, 0)


@pytest.mark.parametrize("name", BDR)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_block_falls_below_the_lower_bound(name: str, data: Any) -> None:
    n = data.draw(st.integers(1, 33), label="n")
    pairs = data.draw(st.lists(st.tuples(mantissas, exponents), min_size=n, max_size=n), label="m, e")
    block = np.array([m * 2.0**e for m, e in pairs], np.float32)
    if block.any():
        assert qsnr_of_block(parse(name), block) >= qsnr_lower_bound(parse(name), n)


def adversarial(fmt: Bdr, tries: Any = 3000, seed: int = 0) -> Any:
    """QSNR of the worst block of a directed search: one starts the top binade, others lie by ties."""
    rng = np.random.default_rng(seed)
    half = 2.0**-fmt.m * (1 - 2.0**-10)  # just short of half a step: rounds down and loses the most
    finer = half * 2.0**-fmt.largest_shift
    reach = np.arange(tries)[:, None] % 3  # a third of the blocks have the smallest values everywhere
    odd = 1 + 2 * rng.integers(0, reach + 1, (tries, fmt.k1))
    blocks = odd * finer * rng.choice([-1, 1], (tries, fmt.k1))
    blocks[:, : fmt.k2] = half
    blocks[:, 0] = 1 + half * rng.integers(0, 2, tries)
    blocks = blocks.astype(np.float32)
    rounded = fb.fake_quantize(blocks, fmt).astype(np.float64)
    noise = ((rounded - blocks) ** 2).sum(1) / (blocks.astype(np.float64) ** 2).sum(1)
    return -10 * np.log10(noise.max())


@pytest.mark.parametrize("name", BDR)
def test_adversarial_blocks_respect_the_bound_and_come_near_it(name: str) -> None:
    fmt = parse(name)
    assert qsnr_lower_bound(fmt, fmt.k1) <= adversarial(fmt) <= qsnr_lower_bound(fmt, fmt.k1) + 2.5


def worst(fmt: Any) -> Any:
    """The block with the least signal and most noise of theorem 1: every value half a step off."""
    half = 2.0**-fmt.m
    block = np.full(fmt.k1, half / 2.0**fmt.largest_shift)
    block[: fmt.k2] = half
    block[0] = 1 + half * (1 - 2.0**-20)
    return block


@pytest.mark.parametrize(("name", "above"), [("mx9", 2.0), ("mx9", 0.2), ("mx6", 0.8)])
def test_a_bound_that_is_too_high_is_refuted(name: str, above: Any) -> None:
    fmt = parse(name)
    bound = qsnr_lower_bound(fmt, fmt.k1)
    assert bound <= qsnr_of_block(fmt, worst(fmt)) < bound + above


bdrs = st.builds(
    lambda m, d2, k2, ratio: Bdr(m, 8, k2 * ratio, d2, k2),
    st.integers(1, 10),
    st.integers(0, 3),
    st.integers(1, 6),
    st.integers(1, 6),
)


@settings(max_examples=200)
@given(fmt=bdrs, data=st.data())
def test_no_vector_in_any_two_level_format_falls_below_the_bound(fmt: Any, data: Any) -> None:
    value = st.floats(-2, 2, width=32).filter(lambda v: v == 0 or abs(v) > 2.0**-40)
    x = np.array(data.draw(st.lists(value, min_size=1, max_size=2 * fmt.k1)))
    if x.any():
        assert qsnr_of_block(fmt, x) >= qsnr_lower_bound(fmt, x.size) - 1e-9


@pytest.mark.parametrize(("name", "bound"), [("mx9", 34.74), ("mx6", 16.68), ("mx4", 4.64)])
def test_the_bound_has_the_published_values(name: str, bound: Any) -> None:
    assert qsnr_lower_bound(parse(name), 16) == pytest.approx(bound, abs=0.02)


def test_mx9_mx6_and_mx4_are_on_the_front_of_their_own_sweep() -> None:
    x = variable_variance_gaussian(0, vectors=512, length=256)
    shapes = [
        (m, k1, d2, k2)
        for m in range(2, 8)
        for k1 in (8, 16, 32, 64)
        for d2 in (0, 1, 2)
        for k2 in (1, 2, 4, 8)
    ]
    formats = [Bdr(m, 8, k1, d2, k2) for m, k1, d2, k2 in shapes if d2 or k2 == 1]
    points = {f: (area_memory_proxy(f), fb.qsnr(x, fb.fake_quantize(x, f))) for f in formats}
    for name in BDR:
        cost, quality = points[parse(name)]
        assert not any(c <= cost and q > quality + 0.01 for c, q in points.values()), name
