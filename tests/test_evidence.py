"""Paired intervals: those of SciPy's test, with the claimed rate of errors, and no finer than the metric."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fewbits.errors import ArgumentError
from fewbits.evidence import paired

IMAGE = 100 / 897  # percentage points, of the held-out digits


def test_the_interval_is_that_of_a_table_of_students_t() -> None:
    found = paired((11, 22, 33), (10, 20, 30))
    assert (found.pairs, found.mean) == (3, 2.0)
    # t(0.975, 2) = 4.302653; the deviation is 1: 4.302653 / sqrt(3)
    assert found.margin == pytest.approx(2.484138, rel=1e-6)
    assert (found.low, found.high) == pytest.approx((-0.484138, 4.484138), rel=1e-5)
    assert not found.differs
    assert found.needed == 4  # t(0.975, 3) = 3.182446: 1.591 < 2


@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(-50, 50)), min_size=2, max_size=12))
def test_without_a_resolution_it_is_the_paired_t_test(pairs: list[tuple[float, float]]) -> None:
    values, baseline = zip(*pairs, strict=True)
    differences = np.subtract(values, baseline)
    if np.ptp(differences) < 1e-6:  # the test itself says nothing of equal differences
        return
    found, test = paired(values, baseline), stats.ttest_rel(values, baseline)
    low, high = test.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9, abs=1e-9)
    if abs(test.pvalue - 0.05) > 1e-9:
        assert found.differs == (test.pvalue < 0.05)


@pytest.mark.parametrize(
    "flips", [(1,), (1, 1), (2, 2), (3, 3), (1, 1, 1), (1, 1, 1, 1, 1), (1, 0, 2), (0, 0, 0)]
)
def test_a_few_images_are_no_evidence_however_much_the_seeds_agree(flips: tuple[int, ...]) -> None:
    baseline = [97.0 + i for i in range(len(flips))]
    for sign in (1, -1):
        values = [b + sign * k * IMAGE for b, k in zip(baseline, flips, strict=True)]
        assert not paired(values, baseline, IMAGE).differs


def test_five_seeds_that_all_lose_are_evidence() -> None:
    baseline = (97.1, 98.2, 97.9, 98.4, 97.5)
    values = [b - k * IMAGE for b, k in zip(baseline, (3, 1, 2, 5, 5), strict=True)]
    found = paired(values, baseline, IMAGE)
    # In images: mean 3.2, variance 3.2 and as many flips, t(0.975, 4) = 2.776445.
    assert found.margin == pytest.approx(2.776445 * math.sqrt(3.2 / 5) * IMAGE, rel=1e-5)
    assert found.differs
    assert found.needed == 4


def test_one_pair_has_no_interval_and_a_broken_model_differs() -> None:
    one = paired((1.0,), (2.0,))
    assert all(map(math.isnan, (one.low, one.high, one.margin)))
    assert not one.differs
    assert one.needed is None
    assert not paired((math.nan,), (2.0,)).differs
    assert paired((math.nan, 1.0), (2.0, 1.0)).differs
    assert paired((math.inf, 1.0), (2.0, 1.0)).mean == math.inf
    assert not paired((1.0, 2.0), (1.0, 2.0)).differs


@pytest.mark.parametrize("broken", [math.inf, -math.inf, math.nan])
def test_two_models_that_broke_alike_do_not_differ(broken: float) -> None:
    alike = paired((broken, broken), (broken, broken))
    assert not alike.differs
    assert alike.mean == 0
    assert not paired((broken, 1.0), (broken, 1.0)).differs
    assert paired((broken, 1.0), (2.0, 1.0)).differs  # the control: one alone broke


@pytest.mark.parametrize(("values", "baseline"), [((), ()), ((1.0,), ()), ((1.0, 2.0), (1.0,))])
def test_what_is_not_in_pairs_is_refused(values: Any, baseline: Any) -> None:
    with pytest.raises(ArgumentError, match="expected pairs, at least one"):
        paired(values, baseline)


@pytest.mark.parametrize("exponent", [-1000, -100, 100, 500, 1010])
@pytest.mark.parametrize("resolution", [0.0, 0.5])
def test_the_unit_of_a_metric_changes_nothing_else(exponent: int, resolution: float) -> None:
    values, baseline, unit = [11.0, 22.0, 33.0, -3.0], [2.0, 20.0, 30.0, -6.0], 2.0**exponent
    plain = paired(values, baseline, resolution)
    found = paired([v * unit for v in values], [b * unit for b in baseline], resolution * unit)
    assert (found.mean, found.low, found.high) == (plain.mean * unit, plain.low * unit, plain.high * unit)
    assert (found.needed, found.differs) == (plain.needed, plain.differs)


def test_differences_at_the_ends_of_the_range() -> None:
    big = 1.5e308
    assert paired([1e200, -1e200], [0, 0]).mean == 0
    assert paired([1e308, 1e308], [-0.5e308, -0.5e308]).mean == pytest.approx(1.5e308)
    far = paired([big, -big], [-big, big])  # the differences are beyond float64, their mean is not
    assert (far.mean, far.low, far.high, far.differs) == (0.0, -math.inf, math.inf, False)
    assert paired([big, big], [-big, -big]).differs  # the mean too
    tiny = paired([1e-200, -3e-200], [0, 0])
    assert not tiny.differs  # their squares are below float64
    assert tiny.margin == pytest.approx(12.706204736 * 2e-200, rel=1e-6)  # t(0.975, 1)


def test_numbers_of_numpy_and_torch_are_those_of_python() -> None:
    values, baseline = [0.5, 0.75, 0.875], [0.5, 0.5, 0.5]
    wanted = paired(values, baseline)
    single = [np.float32(v) for v in values], [np.float32(b) for b in baseline]
    assert paired(*single) == wanted
    for convert in (np.array, np.float32, torch.tensor, tuple, iter):
        assert paired(convert(values), convert(baseline)) == wanted


@pytest.mark.parametrize(
    "given",
    [
        "12",
        ["1", "2"],
        [1.0, None],
        [1.0, 1j],
        [[1.0, 2.0], [3.0, 4.0]],
        3.0,
        None,
        [10**400, 1],
        np.ones((2, 2)),
    ],
)
def test_what_is_no_number_is_refused(given: Any) -> None:
    for pair, name in (((given, [1.0, 2.0]), "values"), (([1.0, 2.0], given), "baseline")):
        with pytest.raises(ArgumentError, match=f"{name}=.*; expected numbers"):
            paired(*pair)


@pytest.mark.parametrize("resolution", [-1, -0.5, math.nan, math.inf, "1", None])
def test_a_resolution_that_is_no_step_is_refused(resolution: Any) -> None:
    with pytest.raises(ArgumentError, match=r"resolution=.*; expected the smallest step"):
        paired([1.0, 2.0], [0.0, 1.0], resolution)


@given(st.integers(2, 9), st.floats(0.1, 5), st.integers(0, 2**32 - 1))
def test_so_many_pairs_as_are_needed_suffice_and_one_fewer_does_not(n: int, effect: float, seed: int) -> None:
    sample = np.random.default_rng(seed).standard_normal(n)
    sample = effect + (sample - sample.mean()) / sample.std(ddof=1)
    needed = paired(sample, np.zeros(n)).needed

    def differs(pairs: int) -> bool:
        signs = np.resize([1.0, -1.0], pairs)  # of the same mean and deviation, whatever their number
        signs = effect + (signs - signs.mean()) / signs.std(ddof=1)
        return bool(stats.ttest_1samp(signs, 0).pvalue < 0.05)

    assert needed is not None
    assert differs(needed)
    assert needed == 2 or not differs(needed - 1)


def rate(draw: Any, resolution: float, n: int, seed: int = 0, runs: int = 4000) -> float:
    """The share of experiments of n seeds in which a difference is claimed."""
    rng = np.random.default_rng(seed)
    return float(np.mean([paired(draw(rng, n), [0.0] * n, resolution).differs for _ in range(runs)]))


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_where_there_is_no_difference_one_in_twenty_is_claimed(n: int) -> None:
    assert rate(lambda rng, n: rng.standard_normal(n).tolist(), 0.0, n) == pytest.approx(0.05, abs=0.012)


@pytest.mark.parametrize("flips", [0.2, 1, 4, 20])
@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_images_that_flip_either_way_are_claimed_no_more_often(n: int, flips: float) -> None:
    def draw(rng: Any, n: int) -> Any:
        return ((rng.poisson(flips, n) - rng.poisson(flips, n)) * IMAGE).tolist()

    assert rate(draw, IMAGE, n, runs=2000) <= 0.05 + 0.015


def test_a_true_difference_is_found() -> None:
    def shifted(rng: Any, n: int) -> Any:
        return (2 + rng.standard_normal(n)).tolist()

    def loses(rng: Any, n: int) -> Any:
        return ((rng.poisson(4, n) - rng.poisson(13, n)) * IMAGE).tolist()  # one point of accuracy

    # Student's power for a shift of two deviations: 0.41 for 3, 0.93 for 5
    assert rate(shifted, 0.0, 5, runs=2000) == pytest.approx(0.93, abs=0.03)
    assert rate(shifted, 0.0, 3, runs=2000) == pytest.approx(0.48, abs=0.08)
    assert rate(loses, IMAGE, 5, runs=2000) > 0.8
    # The control: the range of the baseline over seeds, which moves by three points, never sees it.
    rng = np.random.default_rng(1)
    old = [abs(np.mean(loses(rng, 5))) > np.ptp(rng.normal(97, 1.5, 5)) for _ in range(500)]
    assert np.mean(old) < 0.1
