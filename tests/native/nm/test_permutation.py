"""The search for an order of columns: all instruction sets equal the definition, which equals brute force."""

import numpy as np
import pytest
from numpy.typing import NDArray

from fewbits.kernels import native
from fewbits.kernels.bits.nm_permutation import NmPermutation, identity_permutation
from fewbits.kernels.reference.nm import permutation as reference

SHAPES = [(8, 1, 2, 4), (16, 130, 2, 4), (8, 64, 1, 2), (24, 33, 4, 8), (9, 5, 2, 3), (128, 3, 63, 64)]


def state(columns: int, rows: int, keep: int, group: int, largest: int = 1000) -> NmPermutation:
    rng = np.random.default_rng(columns)
    magnitudes = rng.integers(0, largest, (columns, rows), np.int32)
    magnitudes[::3] //= largest // 4  # ties
    return identity_permutation(magnitudes, keep, group)


def kept(s: NmPermutation, order: NDArray[np.int32]) -> list[int]:
    """What each group keeps, from nothing but a sort."""
    groups = s.magnitudes[order].reshape(len(s.scores), s.group, -1)
    return np.sort(groups, axis=1)[:, -s.keep :].sum(axis=(1, 2), dtype=np.int64).tolist()


def proposals(s: NmPermutation, n: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    rng = np.random.default_rng(7)
    pairs = rng.integers(0, len(s.order), (n, 2), np.int32)
    return pairs, (rng.standard_exponential(n) * s.magnitudes.mean()).astype(np.int64)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_instruction_set_equals_the_definition(isa: str, shape: tuple[int, int, int, int]) -> None:
    mine, expected = state(*shape), state(*shape)
    search = native.PermutationSearch(mine)
    search.evaluate_groups(2)
    reference.evaluate_groups(expected)
    pairs, allowances = proposals(mine, 200)
    gains = np.empty((2, 200), np.int64)
    made = search.anneal(pairs, allowances, gains[0])
    assert made == reference.anneal(expected, pairs, allowances, gains[1]) > 0
    assert (gains[0] == gains[1]).all()
    for name in ("order", "edges", "bases", "scores"):
        assert (getattr(mine, name) == getattr(expected, name)).all(), name


@pytest.mark.parametrize("shape", SHAPES)
def test_the_definition_equals_brute_force(shape: tuple[int, int, int, int]) -> None:
    s = state(*shape)
    reference.evaluate_groups(s)
    pairs, allowances = proposals(s, 60)
    for k in range(len(pairs)):
        before, swapped = s.order.copy(), s.order.copy()
        swapped[pairs[k]] = swapped[pairs[k][::-1]]
        gain = np.zeros(1, np.int64)
        made = reference.anneal(s, pairs[k : k + 1], allowances[k : k + 1], gain)
        assert gain[0] == sum(kept(s, swapped)) - sum(kept(s, before))
        assert s.order.tolist() == (swapped if made else before).tolist()
        assert s.scores.tolist() == kept(s, s.order)


def test_a_wrong_edge_would_be_seen(isa: str) -> None:
    s = state(16, 130, 2, 4)
    search = native.PermutationSearch(s)
    search.evaluate_groups(1)
    pairs, _ = proposals(s, 50)
    gains = np.empty((2, 50), np.int64)
    never = np.full(50, -(2**62))
    search.anneal(pairs, never, gains[0])
    s.edges[:] += 1  # the control
    search.anneal(pairs, never, gains[1])
    assert (gains[0] != gains[1]).any()


def test_sums_hold_at_the_largest_magnitudes(isa: str) -> None:
    s, expected = state(8, 1000, 2, 4, 2**30 // 1000), state(8, 1000, 2, 4, 2**30 // 1000)
    native.PermutationSearch(s).evaluate_groups(1)
    reference.evaluate_groups(expected)
    assert (s.bases == expected.bases).all()
    assert s.scores.tolist() == kept(s, s.order)


@pytest.mark.parametrize(
    ("columns", "keep", "order", "largest", "message"),
    [
        (10, 2, None, 5, "whole groups"),
        (8, 4, None, 5, "keep < group"),
        (8, 2, 8, 5, "the order is of columns"),
        (8, 2, None, 2**30, "magnitudes from 0"),
    ],
)
def test_what_would_read_or_count_too_far_is_refused(
    columns: int, keep: int, order: int | None, largest: int, message: str
) -> None:
    s = identity_permutation(np.full((columns, 3), largest, np.int32), keep, 4)
    if order is not None:
        s.order[0] = order
    if columns == 10:
        s = NmPermutation(s.magnitudes, s.order, s.edges, s.bases, np.zeros(3, np.int64), keep)
    with pytest.raises(ValueError, match=message):
        native.PermutationSearch(s)


def test_pairs_beyond_the_columns_are_refused() -> None:
    search = native.PermutationSearch(state(8, 3, 2, 4))
    with pytest.raises(ValueError, match="pairs are of positions"):
        search.anneal(np.array([[0, 8]], np.int32), np.zeros(1, np.int64), np.zeros(1, np.int64))
