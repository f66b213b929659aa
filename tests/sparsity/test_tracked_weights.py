"""The choice of tracked weights equals a full sort, whatever comes first and however many come at once."""

import numpy as np
import pytest
import torch

from fewbits.sparsity import tracked_weights
from fewbits.sparsity.tracked_weights import Selection, Tracked
from tests.sparsity import dense_dropback


def candidates(change: np.ndarray, start: int = 0) -> Tracked:
    index = torch.arange(start, start + len(change))
    return Tracked(index, torch.from_numpy(change), torch.from_numpy(change * 2))


def changes(n: int, kinds: int) -> np.ndarray:
    """Return changes among which many are equal."""
    return np.random.default_rng(n).integers(-kinds, kinds + 1, n).astype(np.float32)


@pytest.mark.parametrize("kinds", [1, 5, 1_000_000])
@pytest.mark.parametrize("budget", [1, 10, 500, 999, 1000, 2000])
def test_the_strongest_are_those_of_a_full_sort(budget: int, kinds: int) -> None:
    change = changes(1000, kinds)
    kept = dense_dropback.strongest(change, budget) & (change != 0)
    for pieces in (1, 7, 40):
        selection = Selection(budget)
        parts = np.array_split(np.arange(1000), pieces)
        for part in np.random.default_rng(pieces).permutation(pieces):
            selection.add(candidates(change[parts[part]], int(parts[part][0])))
        found = selection.result()
        assert found.index.tolist() == np.flatnonzero(kept).tolist()
        assert found.change.tolist() == change[kept].tolist()
        assert found.velocity is not None
        assert found.velocity.tolist() == (2 * change[kept]).tolist()


def test_room_is_kept_for_the_budget_and_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracked_weights, "AT_ONCE", 64)
    change = changes(10_000, 1_000_000)
    selection, most = Selection(100), 0
    for start in range(0, 10_000, 64):
        selection.add(candidates(change[start : start + 64], start))
        most = max(most, selection.held)
    assert most <= 100 + 64 + 64
    kept = np.flatnonzero(dense_dropback.strongest(change, 100))
    assert selection.result().index.tolist() == kept.tolist()


def test_the_published_threshold_is_wrong() -> None:
    """The control: a partition leaves the part that it takes its value from in any order, as CPUs differ."""
    change = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    budgets = range(25, 1000, 25)
    for budget in budgets:
        assert dense_dropback.strongest(change, budget).sum() == budget
    kept = [int(dense_dropback.published(change, budget).sum()) for budget in budgets]
    assert sum(k != budget for k, budget in zip(kept, budgets, strict=True)) > len(budgets) / 2


def test_a_nan_is_kept_to_be_seen() -> None:
    change = np.array([1, np.nan, 3, -4, 0], np.float32)
    selection = Selection(2)
    selection.add(candidates(change))
    assert selection.result().index.tolist() == [1, 3]
