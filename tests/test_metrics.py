"""Measures of error: by hand on small arrays, and the published claims about them on large ones.

The published figures are those of Darvish Rouhani et al., With Shared Microexponents, A Little Shifting Goes a Long Way
(ISCA 2023), sections 3 and 4, and a calibration of the same formats on three distributions.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fewbits as fb
from fewbits import kernels
from fewbits.errors import ArgumentError, DTypeError
from fewbits.formats import Bdr, parse
from fewbits.metrics import Tally, qsnr_lower_bound
from tests import cases

INF, NAN = math.inf, math.nan


def test_qsnr_is_the_ratio_of_the_sums_of_squares_in_decibels() -> None:
    x, y = np.array([3.0, 4.0]), np.array([3.0, 4.5])
    assert fb.qsnr(x, y) == pytest.approx(10 * math.log10(25 / 0.25))
    assert fb.qsnr(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])) == pytest.approx(20)
    assert fb.qsnr(x.astype(np.float16), y.astype(np.float32)) == pytest.approx(20)
    assert fb.qsnr(x, x) == INF
    assert fb.qsnr(np.zeros(3), np.zeros(3)) == INF
    assert fb.qsnr(np.zeros(3), np.ones(3)) == -INF
    assert fb.qsnr(np.empty(0), np.empty(0)) == INF


def test_qsnr_takes_the_packed_array_itself() -> None:
    x = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)
    q = fb.quantize(x, "mxfp4", axis=0)
    assert fb.qsnr(x, q) == fb.qsnr(x, q.dequantize()) == fb.qsnr(x, fb.fake_quantize(x, "mxfp4", axis=0))


def test_qsnr_of_two_shapes_or_of_no_numbers_is_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"qsnr of shapes \(3,\) and \(1, 3\); expected the same shape twice"
    ):
        fb.qsnr(np.ones(3), np.ones((1, 3)))
    with pytest.raises(DTypeError, match="an array of int64; expected float16"):
        fb.qsnr(np.ones(3, np.int64), np.ones(3))


def test_measure_counts_by_hand() -> None:
    x = np.array([1.0, 1.2, 0.1, -7.9, 0.0, 4.0], np.float32)
    error = fb.measure(x, "fp4_e2m1")  # becomes 1, 1, 0, -6, 0, 4
    wide = x.astype(np.float64)
    difference = np.array([1, 1, 0, -6, 0, 4]) - wide
    relative = np.abs(difference[[0, 1, 2, 3, 5]]) / np.abs(wide[[0, 1, 2, 3, 5]])
    assert error.qsnr_db == pytest.approx(10 * math.log10((wide @ wide) / (difference @ difference)))
    assert error.max_relative_error == 1
    assert error.mean_relative_error == pytest.approx(relative.mean())
    assert error.saturated_fraction == pytest.approx(1 / 6)
    assert error.flushed_fraction == pytest.approx(1 / 6)


@pytest.mark.parametrize("name", ["mxfp4", "mx6", "nvfp4", "int8_channel", "fp8_e5m2"])
def test_measure_agrees_with_qsnr_along_any_axis_and_in_any_family(name: str) -> None:
    x = np.random.default_rng(1).standard_normal((40, 30)).astype(np.float32)
    for axis in (0, 1):
        error = fb.measure(x, name, axis=axis)
        assert error.qsnr_db == pytest.approx(fb.qsnr(x, fb.fake_quantize(x, name, axis=axis)), abs=1e-9)
        assert fb.measure(torch.from_numpy(x), name, axis=axis) == error


def test_measure_of_saturation_follows_the_scale_rule() -> None:
    # 7.9 under floor lies above 6 x 2^0; rceil takes the next power of two.
    x = np.array([7.9, 1.0, 0.3, 2.0], np.float32)
    assert fb.measure(x, "mxfp4").saturated_fraction == 0.25
    assert fb.measure(x, "mxfp4", scale_rule="rceil").saturated_fraction == 0
    assert fb.measure(x, "int8_tensor").saturated_fraction == 0  # the largest value is the scale


def test_measure_of_nothing_of_zeros_and_of_a_scalar() -> None:
    assert fb.measure(np.empty(0), "mxfp4") == fb.measure(np.zeros(5), "mxfp4")
    assert fb.measure(np.zeros(5), "mxfp4").qsnr_db == INF
    assert fb.measure(np.float32(3), "mxfp4").qsnr_db == INF


def test_nan_and_infinity_count_as_values_and_in_no_sum() -> None:
    x = np.array([1.1, NAN, INF, -2.0], np.float32)
    finite = fb.measure(np.array([1.1, -2.0], np.float32), "fp8_e4m3")
    error = fb.measure(x, "fp8_e4m3")
    assert error.qsnr_db == finite.qsnr_db
    assert error.mean_relative_error == finite.mean_relative_error
    assert error.saturated_fraction == 0
    lost = fb.measure(x, "mxfp8_e4m3")  # the whole block is NaN: nothing is left of the signal
    assert lost.qsnr_db == -INF


def test_a_tally_of_pieces_is_the_measure_of_the_whole() -> None:
    x = np.random.default_rng(2).standard_normal((64, 48)).astype(np.float32)
    fmt = parse("mxfp4")
    y, limit = fb.fake_quantize(x, fmt), kernels.limits(x, fmt, -1, kernels.options(fmt))
    pieces, whole = Tally(), fb.measure(x, fmt)
    for i in range(0, 64, 16):
        pieces.add(x[i : i + 16], y[i : i + 16], limit[i : i + 16])
    found = pieces.error()
    assert found.qsnr_db == pytest.approx(whole.qsnr_db)
    assert found.mean_relative_error == pytest.approx(whole.mean_relative_error)
    assert (found.max_relative_error, found.saturated_fraction, found.flushed_fraction) == (
        whole.max_relative_error,
        whole.saturated_fraction,
        whole.flushed_fraction,
    )


def test_a_large_array_is_tallied_as_a_small_one() -> None:
    x = np.random.default_rng(3).standard_normal((512, 512)).astype(np.float32)
    error = fb.measure(x, "mx6")
    y = fb.fake_quantize(x, "mx6")
    assert error.qsnr_db == pytest.approx(fb.qsnr(x, y), abs=1e-9)
    assert error.flushed_fraction == np.mean((x != 0) & (y == 0))


# ------------------------------------------------------------------------------------------------- published claims

SEEDS = (0, 1, 2)
VECTORS, LENGTH = 4000, 256  # of each seed: 12 000 vectors in all


def samples(kind: str, seed: int) -> cases.Singles:
    """Return vectors of a distribution; in the second, each vector has a standard deviation of its own, |N(0, 1)|."""
    rng = np.random.default_rng(seed)
    if kind == "laplace":
        return rng.laplace(size=(VECTORS, LENGTH)).astype(np.float32)
    x = rng.standard_normal((VECTORS, LENGTH))
    spread = np.abs(rng.standard_normal((VECTORS, 1))) if kind == "variable variance" else 1.0
    return (x * spread).astype(np.float32)


def decibels(name: str, kind: str) -> list[float]:
    """Return the QSNR of a format, one for each seed."""
    return [fb.qsnr(x, fb.fake_quantize(x, name)) for x in (samples(kind, seed) for seed in SEEDS)]


def test_mx9_qsnr_is_15_db_above_per_tensor_e4m3_and_mx6_lies_between_e5m2_and_e4m3() -> None:
    found = {
        name: decibels(name, "variable variance")
        for name in ("mx9", "mx6", "fp8_e4m3_tensor", "fp8_e5m2_tensor")
    }
    spread = max(max(values) - min(values) for values in found.values())
    assert spread < 0.2  # dB between seeds: the claims below are fifteen and two times as large
    assert all(mx9 - e4m3 >= 15 for mx9, e4m3 in zip(found["mx9"], found["fp8_e4m3_tensor"], strict=True))
    assert max(found["fp8_e5m2_tensor"]) + 2 < min(found["mx6"])
    assert max(found["mx6"]) + 2 < min(found["fp8_e4m3_tensor"])


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
    name: str, gaussian: float, variable: float, laplace: float
) -> None:
    expected = {"gaussian": gaussian, "variable variance": variable, "laplace": laplace}
    for kind, value in expected.items():
        x = samples(kind, 7)
        assert fb.qsnr(x, fb.fake_quantize(x, name)) == pytest.approx(value, abs=0.3)


def test_the_range_of_fp6_e3m2_hardly_binds_inside_a_block_so_it_is_as_good_as_fp8_e5m2() -> None:
    narrow, wide = decibels("mxfp6_e3m2", "gaussian"), decibels("mxfp8_e5m2", "gaussian")
    assert np.allclose(narrow, wide, atol=0.01)


# ---------------------------------------------------------------------------------------------------- the lower bound


@pytest.mark.parametrize(("name", "bound"), [("mx9", 34.74), ("mx6", 16.68), ("mx4", 4.64)])
def test_the_bound_of_theorem_1_has_its_published_values(name: str, bound: float) -> None:
    fmt = parse(name)
    assert isinstance(fmt, Bdr)
    assert qsnr_lower_bound(fmt, 16) == pytest.approx(bound, abs=0.01)
    assert qsnr_lower_bound(fmt, 10**6) == qsnr_lower_bound(fmt, 16)
    assert qsnr_lower_bound(fmt, 4) > qsnr_lower_bound(fmt, 16)


def worst_block(fmt: Bdr) -> np.ndarray:
    """Return a block with the least signal and the most noise that theorem 1 allows: every value half a step off."""
    half = 2.0**-fmt.m
    x = np.full(fmt.k1, half / 2.0**fmt.largest_shift)
    x[: fmt.k2] = half
    x[0] = 1 + half * (1 - 2.0**-20)
    return x


def violations(x: np.ndarray, fmt: Bdr, above: float = 0.0) -> int:
    """Return how many rows fall below the bound raised by ``above`` dB."""
    y = fb.fake_quantize(x, fmt)
    noise = np.sum((y - x) ** 2, axis=-1)
    signal = np.sum(x**2, axis=-1)
    bound = qsnr_lower_bound(fmt, x.shape[-1]) + above
    return int(np.count_nonzero(10 * np.log10(signal / np.maximum(noise, 1e-300)) < bound - 1e-9))


def searched(fmt: Bdr, rows: int = 4000, rounds: int = 30) -> np.ndarray:
    """Return blocks that a directed search made as bad as it could: it keeps the worse of each block and a variation."""
    rng = np.random.default_rng(0)

    def ratio(x: np.ndarray) -> np.ndarray:
        return np.sum((fb.fake_quantize(x, fmt) - x) ** 2, axis=-1) / np.sum(x**2, axis=-1)

    x = rng.standard_normal((rows, fmt.k1)) * np.exp(rng.normal(0, 2, (rows, fmt.k1)))
    worst = ratio(x)
    for _ in range(rounds):
        changed = x * np.where(rng.random(x.shape) < 0.2, np.exp(rng.normal(0, 0.7, x.shape)), 1)
        now = ratio(changed)
        better = now > worst
        x[better], worst[better] = changed[better], now[better]
    return x


@pytest.mark.parametrize("name", ["mx9", "mx6", "mx4", "bdr(m=5,k1=32,d2=2,k2=4)", "bdr(m=3,k1=8,d2=0,k2=1)"])
def test_the_bound_holds_on_random_searched_and_worst_blocks(name: str) -> None:
    fmt = parse(name)
    assert isinstance(fmt, Bdr)
    assert violations(searched(fmt), fmt) == 0
    assert violations(worst_block(fmt)[None], fmt) == 0


@pytest.mark.parametrize(("name", "above"), [("mx9", 2.0), ("mx9", 0.2), ("mx6", 0.8)])
def test_a_bound_that_is_too_high_is_broken(name: str, above: float) -> None:
    # The negative control: the worst block comes within 0.2 dB of theorem 1 for MX9, within 0.8 dB for MX6.
    fmt = parse(name)
    assert isinstance(fmt, Bdr)
    assert violations(worst_block(fmt)[None], fmt, above) == 1


@given(
    st.builds(
        lambda m, d2, k2, ratio: Bdr(m, 8, k2 * ratio, d2, k2),
        st.integers(1, 10),
        st.integers(0, 3),
        st.integers(1, 6),
        st.integers(1, 6),
    ),
    st.data(),
)
@settings(max_examples=300)
def test_no_vector_falls_below_the_bound(fmt: Bdr, data: st.DataObject) -> None:
    unit = st.floats(-2, 2, width=32).filter(lambda v: v == 0 or abs(v) > 2.0**-40)
    x = np.array(data.draw(st.lists(unit, min_size=1, max_size=2 * fmt.k1)), np.float64)
    if x.any():
        assert violations(x[None], fmt) == 0
