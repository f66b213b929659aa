"""The rules, against the examples of the rules, sums by hand and SciPy."""

import math
from statistics import fmean

import numpy as np
import pytest
from scipy import stats

from fewbits.bench.rules import (
    ReferencePoint,
    check_seeds,
    converges_too_fast,
    interpolated,
    no_reference,
    olympic_mean,
    one_sided_p,
    reference_point,
    score,
    trimmed,
)
from fewbits.errors import ArgumentError

# The examples of mlcommons/training_policies: epochs to converge at batches of 128 and 256, with N = 5.
SMALL = [16, 14, 16, 17, 16, 16, 15, 16, 15, 16]
# The list of the second is not known here, but its mean and deviation without the ends are these.
LARGE = [19, 20, 20, 20, 21, 21, 21, 21, 22, 23]
KEPT = 3  # runs of five


def test_the_first_example_of_the_rules() -> None:
    point = reference_point(128, SMALL)
    assert (point.mean, point.runs) == (15.75, 8)
    assert point.deviation == pytest.approx(0.4330127, abs=1e-6)
    assert point.least_mean(KEPT) == pytest.approx(15.213, abs=5e-4)
    assert 100 * point.largest_gain(KEPT) == pytest.approx(3.53, abs=5e-3)


def test_the_second_example_of_the_rules() -> None:
    point = reference_point(256, LARGE)
    assert point.mean == 20.75
    assert point.deviation == pytest.approx(0.66, abs=5e-3)
    assert point.least_mean(KEPT) == pytest.approx(19.929, abs=5e-4)
    assert 100 * point.largest_gain(KEPT) == pytest.approx(4.12, abs=5e-3)


def test_the_interpolated_example_of_the_rules() -> None:
    point = interpolated(192, reference_point(128, SMALL), reference_point(256, LARGE))
    assert point.mean == 18.25
    assert point.deviation == pytest.approx(0.547, abs=5e-4)
    assert 100 * point.largest_gain(KEPT) == pytest.approx(3.675, abs=5e-3)  # 3.68 in the rules


def test_the_submissions_of_the_examples() -> None:
    assert not converges_too_fast([15, 15, 15, 16, 16], reference_point(128, SMALL))
    assert converges_too_fast([19, 19, 19, 20, 21], reference_point(256, LARGE))


def test_the_deviation_of_all_runs_would_give_other_numbers() -> None:
    point = ReferencePoint(128, 15.75, float(np.std(SMALL)), 8)
    assert 100 * point.largest_gain(KEPT) == pytest.approx(6.56, abs=5e-3)


@pytest.mark.parametrize("seed", range(5))
def test_the_test_equals_scipys(seed: int) -> None:
    random = np.random.default_rng(seed)
    reference = ReferencePoint(
        1, 100 * random.random() + 1, random.random() + 0.1, int(random.integers(2, 20))
    )
    runs, mean = int(random.integers(2, 20)), reference.mean + random.normal()
    ours = one_sided_p(mean, reference, runs)
    given = (mean, reference.deviation, runs, reference.mean, reference.deviation, reference.runs)
    theirs = stats.ttest_ind_from_stats(*given, equal_var=True, alternative="less")
    assert ours == pytest.approx(theirs.pvalue, rel=1e-9)
    assert ours == pytest.approx(stats.t.cdf(theirs.statistic, runs + reference.runs - 2), rel=1e-9)
    least = reference.least_mean(runs)
    assert (
        one_sided_p(least * (1 + 1e-6), reference, runs)
        > 0.05
        >= one_sided_p(least * (1 - 1e-6), reference, runs)
    )


def test_a_reference_without_deviation_is_the_least_mean() -> None:
    point = reference_point(32, [5, 5, 5, 5])
    assert point.least_mean(KEPT) == pytest.approx(5)
    assert converges_too_fast([4, 5, 5, 4], point)
    assert not converges_too_fast([5, 5, 6, 5], point)


def test_the_fastest_and_the_slowest_are_dropped() -> None:
    assert trimmed([5, 1, 3, 2, 9]) == [2, 3, 5]
    assert olympic_mean([5, 1, 3, 2, 9]) == fmean([2, 3, 5])


def test_one_that_does_not_converge_is_the_slowest_and_two_are_no_result() -> None:
    assert olympic_mean([5, math.inf, 3, 4, 2]) == fmean([3, 4, 5])
    assert olympic_mean([5, math.inf, 3, math.inf, 2]) == math.inf
    assert not converges_too_fast([5, math.inf, 3, math.inf, 2], reference_point(1, SMALL))


def test_of_more_runs_the_result_is_the_median_of_the_windows() -> None:
    times = [9.0, 1.0, 5.0, 6.0, 2.0, 8.0]
    # Windows of 4: 9156, 1562, 5628: means of the middle two are 5.5, 3.5 and 5.5.
    assert score(times, 4) == 5.5
    assert score(times[:5], 4) == 4.5
    assert score(times[:4], 4) == 5.5
    # Two that fail lie in the first two windows of three, not in the last one.
    assert score([math.inf, 3.0, math.inf, 3.0, 3.0, 3.0], 4) == 3.0
    assert score([3.0, math.inf, math.inf, 3.0, 3.0, 3.0], 4) == math.inf


def test_too_few_runs_and_times_that_are_none_are_refused() -> None:
    with pytest.raises(ArgumentError, match="2 runs; expected 3 or more"):
        olympic_mean([1, 2])
    with pytest.raises(ArgumentError, match="4 runs where a result takes 5"):
        score([1, 2, 3, 4], 5)
    for at in range(4):
        times = [5.0, 6.0, 7.0]
        times.insert(at, math.nan)
        for called in (lambda x: score(x, 3), olympic_mean, lambda x: reference_point(1, x)):
            with pytest.raises(ArgumentError, match="a run has NaN; give infinity"):
                called(times)
    with pytest.raises(ArgumentError, match="did not converge"):
        reference_point(1, [1, 2, math.inf])
    with pytest.raises(ArgumentError, match="is not between 128 and 256"):
        interpolated(300, reference_point(128, SMALL), reference_point(256, LARGE))


def test_seeds_are_distinct_and_allowed() -> None:
    check_seeds([3, 1, 2])
    with pytest.raises(ArgumentError, match="seed 1 is repeated"):
        check_seeds([1, 2, 1])
    with pytest.raises(ArgumentError, match="seed 4 is not allowed; take some of 1, 2"):
        check_seeds([1, 4], (1, 2))


@pytest.mark.parametrize("runs", [3, 5])
def test_equal_recipes_are_refused_as_often_as_the_manual_says(runs: int) -> None:
    """The level of the test with the deviation of trimmed runs, by simulation; of fewer runs it is none."""
    random = np.random.default_rng(0)

    def refused(count: int) -> float:
        tested = [(list(x[:count]), list(x[count:])) for x in random.normal(100, 10, (1000, 2 * count))]
        return sum(converges_too_fast(a, reference_point(32, b)) for a, b in tested) / len(tested)

    assert 0.08 < refused(2 * runs) < 0.18
    assert refused(runs) > 0.15
    assert "where the test takes" in no_reference([100.0, 110.0, 105.0, 90.0][:runs], runs)
    assert no_reference(list(random.normal(100, 10, 2 * runs)), runs) == ""
