"""What the tests share is itself tested: a table of cases that misses one tests less than it says."""

from itertools import combinations, product

import pytest

from tests.cases import pairs

AXES = [
    ((1, 2), (3, 4)),
    ((1, 2, 3), ("a", "b"), (None, 0.5)),
    (range(43), range(12), range(6), range(3), range(2)),
    (range(3),) * 7,
    ((0,), range(5), (0,)),
    (([1], [2]), ({}, {1: 2})),  # values that cannot be hashed
]


@pytest.mark.parametrize("axes", AXES, ids=lambda axes: "x".join(str(len(axis)) for axis in axes))
def test_every_two_values_of_two_axes_meet_in_a_row(axes: tuple[tuple[object, ...], ...]) -> None:
    rows = pairs(*axes)
    for i, j in combinations(range(len(axes)), 2):
        for a, b in product(axes[i], axes[j]):
            assert any(row[i] == a and row[j] == b for row in rows), (i, a, j, b)
    assert all(value in axis for row in rows for value, axis in zip(row, axes, strict=True))
    assert rows == pairs(*axes)


@pytest.mark.parametrize("axes", AXES, ids=lambda axes: "x".join(str(len(axis)) for axis in axes))
def test_a_missing_pair_would_be_noticed(axes: tuple[tuple[object, ...], ...]) -> None:
    (*rows, last) = pairs(*axes)
    met = {(i, j, str(row[i]), str(row[j])) for row in rows for i, j in combinations(range(len(axes)), 2)}
    assert any((i, j, str(last[i]), str(last[j])) not in met for i, j in combinations(range(len(axes)), 2))


def test_there_are_hardly_more_rows_than_the_two_longest_axes_have_pairs() -> None:
    assert len(pairs(range(43), range(12), range(6), range(3), range(2))) <= 1.1 * 43 * 12
    assert len(pairs(*[range(3)] * 4)) <= 12  # nine is the fewest there can be
    assert len(pairs(*[range(2)] * 10)) <= 12


def test_one_axis_and_an_empty_one_are_what_they_say() -> None:
    assert pairs("ab") == [("a",), ("b",)]
    assert pairs() == []
    assert pairs("ab", "") == []
