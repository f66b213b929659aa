"""Pareto fronts against brute force: every pair of points is compared."""

import math

from hypothesis import given
from hypothesis import strategies as st

from fewbits.fronts import best_at, pareto_front

# Few different numbers, so that ties in one of the two, and equal points, are many.
numbers = st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, math.inf, -math.inf])
points = st.lists(st.tuples(numbers, numbers), max_size=12)


def beats(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return a[0] <= b[0] and a[1] >= b[1] and a != b


@given(points)
def test_the_front_is_exactly_what_nothing_beats(given_points: list[tuple[float, float]]) -> None:
    expected = {i for i, p in enumerate(given_points) if not any(beats(other, p) for other in given_points)}
    front = pareto_front(given_points)
    assert set(front) == expected
    assert [given_points[i][0] for i in front] == sorted(given_points[i][0] for i in front)


def test_a_nan_is_never_on_the_front() -> None:
    assert pareto_front([(4.0, math.nan), (8.0, 1.0), (math.nan, 9.0)]) == [1]


def test_a_point_that_is_beaten_is_not_on_the_front_and_one_that_is_equal_is() -> None:
    assert pareto_front([(4.0, 10.0), (4.0, 9.9), (4.1, 10.0), (4.0, 10.0)]) == [0, 3]


@given(points, st.integers(-1, 6).map(float))
def test_the_best_at_a_cost_is_the_front_there(given_points: list[tuple[float, float]], cost: float) -> None:
    within = [good for c, good in given_points if c <= cost]
    assert best_at(given_points, cost) == (max(within) if within else -math.inf)
    front = [given_points[i] for i in pareto_front(given_points)]
    assert best_at(front, cost) == best_at(given_points, cost)


def test_a_nan_is_never_the_best() -> None:
    assert best_at([(1.0, math.nan), (1.0, 2.0)], 1.0) == 2.0
