"""A filter keeps the samples that a definition of its own says, and deals them out fairly."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fewbits.errors import ArgumentError, DataError
from fewbits.train import FilteredSampler, el2n_scores, loss_scores

N = 20
SCORES = torch.tensor([(7 * i) % N for i in range(N)], dtype=torch.float32)


def epochs(sampler: FilteredSampler, count: int) -> list[list[int]]:
    return [list(sampler) for _ in range(count)]


def test_after_the_warm_up_only_the_largest_scores_are_drawn_each_once() -> None:
    sampler = FilteredSampler(N, lambda: SCORES, keep=0.4)
    assert len(sampler) == N
    first, second, third = epochs(sampler, 3)
    assert sorted(first) == list(range(N))
    largest = sorted(range(N), key=lambda i: -float(SCORES[i]))[:8]
    assert sorted(second) == sorted(third) == sorted(largest)
    assert second != third
    assert len(sampler) == 8


def test_scores_are_asked_for_when_they_are_due_and_not_before() -> None:
    asked: list[int] = []

    def scores() -> Tensor:
        asked.append(sampler.epoch)
        return SCORES.roll(len(asked))

    sampler = FilteredSampler(N, scores, keep=0.25, warm_up=2, refresh_every=3)
    drawn = [set(epoch) for epoch in epochs(sampler, 9)]
    assert asked == [2, 5, 8]
    assert drawn[2] == drawn[3] == drawn[4] != drawn[5]


def test_of_equal_scores_the_first_stay_and_nothing_is_lost_at_one() -> None:
    sampler = FilteredSampler(N, lambda: torch.zeros(N), keep=0.5, warm_up=0)
    assert sorted(sampler) == list(range(10))
    assert sorted(FilteredSampler(N, lambda: SCORES, keep=1.0, warm_up=0)) == list(range(N))


def test_processes_share_an_epoch_and_what_is_left_over_changes() -> None:
    samplers = [FilteredSampler(N, lambda: SCORES, keep=0.55, num_replicas=3, rank=r) for r in range(3)]
    left = set()
    for _ in range(12):
        sizes = [len(sampler) for sampler in samplers]
        parts = [list(sampler) for sampler in samplers]
        assert [len(part) for part in parts] == sizes == [sizes[0]] * 3
        together = [i for part in parts for i in part]
        assert len(set(together)) == len(together)
        left |= set(samplers[0].kept.tolist()) - set(together)
    assert len(left) > 3


def test_a_resumed_sampler_draws_what_an_uncut_one_draws() -> None:
    whole = FilteredSampler(N, lambda: SCORES, keep=0.4, refresh_every=2, seed=3)
    cut = FilteredSampler(N, lambda: SCORES, keep=0.4, refresh_every=2, seed=3)
    wanted = epochs(whole, 5)
    began = epochs(cut, 2)
    again = FilteredSampler(N, lambda: SCORES, keep=0.4, refresh_every=2, seed=3)
    again.load_state_dict(cut.state_dict())
    assert began + epochs(again, 3) == wanted
    assert epochs(FilteredSampler(N, lambda: SCORES, keep=0.4, refresh_every=2, seed=4), 5) != wanted


def test_a_loader_takes_it() -> None:
    data = TensorDataset(torch.arange(N))
    sampler = FilteredSampler(N, lambda: SCORES, keep=0.4, warm_up=0)
    seen = torch.cat([batch for (batch,) in DataLoader(data, batch_size=3, sampler=sampler)])
    assert sorted(seen.tolist()) == sampler.kept.tolist()


class Fixed(nn.Module):
    """Its inputs are its logits, where it is in eval mode."""

    def forward(self, x: Tensor) -> Tensor:
        return x if not self.training else x * math.nan


@pytest.mark.parametrize("score", [el2n_scores, loss_scores])
def test_scores_are_what_numpy_makes_of_their_formulas(score: Callable[..., Tensor]) -> None:
    drawn = np.random.default_rng(0)
    logits, labels = 3 * drawn.standard_normal((N, 4)), drawn.integers(0, 4, N)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    if score is el2n_scores:
        wanted = np.sqrt(((p - np.eye(4)[labels]) ** 2).sum(1))
    else:
        wanted = -np.log(p[np.arange(N), labels])
    model = Fixed().train()
    data = TensorDataset(torch.tensor(logits, dtype=torch.float32), torch.tensor(labels))
    found = score(model, DataLoader(data, batch_size=7))
    assert found.numpy() == pytest.approx(wanted, rel=1e-5)
    assert model.training
    assert not found.requires_grad


def test_scoring_leaves_each_module_in_its_own_mode() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Sequential(nn.Dropout())).train()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    loss_scores(model, [(torch.ones(2, 3), torch.zeros(2, dtype=torch.int64))])
    assert [module.training for module in model.modules()] == modes == [True, True, False, True, True]


def test_a_state_of_another_data_set_is_refused() -> None:
    other = FilteredSampler(100, lambda: torch.arange(100.0), keep=0.4, refresh_every=5)
    here = FilteredSampler(N, lambda: SCORES, keep=0.4, refresh_every=5)
    epochs(other, 1)
    for _ in range(2):  # after the warm-up, and after the first scores
        with pytest.raises(DataError, match=r"samples up to 99; expected (20|8) of 20"):
            here.load_state_dict(other.state_dict())
        epochs(other, 1)
    with pytest.raises(DataError, match="with 8 samples up to 27; expected 8 of 20"):
        here.load_state_dict({"epoch": 2, "kept": torch.arange(20, 28)})
    assert sorted(here) == list(range(N))  # it is as it was


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"length": 0}, "length=0"),
        ({"keep": 0.0}, "keep=0.0"),
        ({"keep": 1.5}, "keep=1.5"),
        ({"keep": "0.5"}, "keep='0.5' of 20 samples; expected a share"),
        ({"keep": 0.001}, "keep=0.001 of 20"),
        ({"refresh_every": 0}, "refresh_every=0"),
        ({"warm_up": -1}, "warm_up=-1"),
        ({"num_replicas": 2, "rank": 2}, "rank=2"),
        *(({name: 1.5}, f"{name}=1.5; expected") for name in ("length", "warm_up", "refresh_every", "seed")),
        *(({name: True}, f"{name}=True; expected") for name in ("length", "num_replicas", "rank")),
        ({"keep": 0.05, "num_replicas": 2}, "keep=0.05 of 20 samples, 1, for num_replicas=2"),
        ({"length": 1, "num_replicas": 2}, "of 1 samples, 1, for num_replicas=2"),
    ],
)
def test_bad_numbers_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        FilteredSampler(options.pop("length", N), lambda: SCORES, **options)


@pytest.mark.parametrize(
    ("scores", "told"), [(torch.ones(3), "shape"), (torch.full((N,), math.nan), "20 of 20 scores are not")]
)
def test_bad_scores_are_refused(scores: Tensor, told: str) -> None:
    with pytest.raises(DataError, match=told):
        list(FilteredSampler(N, lambda: scores, warm_up=0))
    with pytest.raises(DataError, match="no batch"):
        el2n_scores(Fixed(), [])
    with pytest.raises(DataError, match="labels of"):
        el2n_scores(Fixed(), [(torch.ones(2, 3), torch.ones(2, 3))])


@pytest.mark.parametrize("labels", [[0, -100], [0, 7], [-1, 0]])
@pytest.mark.parametrize("score", [el2n_scores, loss_scores])
def test_labels_that_are_no_classes_are_refused(score: Callable[..., Tensor], labels: list[int]) -> None:
    model = nn.Linear(3, 7)
    with pytest.raises(DataError, match=f"labels of int64 from {min(labels)} to {max(labels)}; expected"):
        score(model, [(torch.ones(2, 3), torch.tensor(labels))])
    with pytest.raises(DataError, match="labels of int32"):
        score(model, [(torch.ones(2, 3), torch.zeros(2, dtype=torch.int32))])
    assert len(score(model, [(torch.ones(0, 3), torch.zeros(0, dtype=torch.int64))])) == 0
