"""Orders of columns: the published table's matrix, exhaustive search of small ones, budgets and bad input."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from fewbits.errors import ArgumentError, DataError, DTypeError
from fewbits.sparsity import find_order, mask, permutation

# Apex, permutation_tests/README.md: 128 filters, 64 channels, seed 1.
PUBLISHED = torch.from_numpy(np.random.RandomState(1).rand(128, 64))
BEST_PUBLISHED = 2921.947


def kept(w: torch.Tensor, pattern: str = "2:4") -> float:
    return float(w.abs()[mask(w, pattern)].sum())


def test_the_matrix_is_the_published_one() -> None:
    found = find_order(PUBLISHED, moves=1)
    assert float(PUBLISHED.sum()) == pytest.approx(4083.169, abs=1e-3)
    assert float(PUBLISHED.flatten().topk(4096).values.sum()) == pytest.approx(3060.238, abs=1e-3)
    assert found.bound == pytest.approx(3042.332, abs=1e-3)
    assert found.before == pytest.approx(2852.377, abs=1e-3)


def test_more_is_kept_than_by_the_best_published_search_in_four_million_swaps() -> None:
    for seed in range(3):
        found = find_order(PUBLISHED, seed=seed, seconds=3600)  # enough on any machine: the order is the same
        assert found.moves == 64 * 65536
        assert found.after > BEST_PUBLISHED
        assert found.after == kept(PUBLISHED[:, found.order]) < found.bound
        assert found.order.sort().values.tolist() == list(range(64))
        assert found.efficacy > 0.366


def test_random_orders_do_not_get_there() -> None:
    random = torch.Generator().manual_seed(0)
    best = max(kept(PUBLISHED[:, torch.randperm(64, generator=random)]) for _ in range(300))
    assert best < 2885 < BEST_PUBLISHED


def test_a_small_matrix_gets_the_best_of_all_its_orders() -> None:
    for seed in range(5):
        w = torch.randn(6, 8, generator=torch.Generator().manual_seed(seed))
        halves = ([*half, *sorted(set(range(8)) - set(half))] for half in combinations(range(8), 4))
        best = max(kept(w[:, order]) for order in halves)
        assert find_order(w).after == pytest.approx(best)


@pytest.mark.parametrize(("pattern", "columns"), [("1:2", 32), ("4:8", 32), ("2:4", 36), ("1:3", 33)])
def test_every_pattern_gains(pattern: str, columns: int) -> None:
    w = torch.randn(20, columns, generator=torch.Generator().manual_seed(1))
    found = find_order(w, pattern, moves=50_000)
    assert found.after == pytest.approx(kept(w[:, found.order], pattern))
    assert found.after > 1.015 * kept(w, pattern) == pytest.approx(1.015 * found.before)


def test_equal_arguments_give_equal_orders_on_any_number_of_threads() -> None:
    found = [find_order(PUBLISHED, seed=3, moves=30_000).order.tolist() for _ in range(2)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found.append(find_order(PUBLISHED, seed=3, moves=30_000).order.tolist())
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1] == found[2]
    assert found[0] != find_order(PUBLISHED, seed=4, moves=30_000).order.tolist()


class Clock:
    """A clock that goes on by ``tick`` seconds whenever it is looked at."""

    def __init__(self, tick: float) -> None:
        self.now, self.tick = 0.0, tick

    def perf_counter(self) -> float:
        self.now += self.tick
        return self.now


@pytest.mark.parametrize("looks", [30, 60])
def test_the_time_is_kept_and_annealing_still_ends(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen thousand swaps lie between two looks, so a clock that counts looks counts the work."""
    w = torch.randn(64, 1024, generator=torch.Generator().manual_seed(2))
    monkeypatch.setattr(permutation, "time", Clock(1.0))
    found = find_order(w, seconds=looks)
    assert 0.9 * looks <= found.moves / 16384 <= looks < found.seconds + 2 <= looks + 4
    assert found.efficacy > 0.05
    monkeypatch.setattr(
        permutation, "_COOL", permutation._HOT
    )  # never cooled: what too little time would leave
    monkeypatch.setattr(permutation, "_COLD", 2.0)
    monkeypatch.setattr(permutation, "time", Clock(1.0))
    assert find_order(w, seconds=looks).efficacy < found.efficacy


def test_an_outlier_does_not_hide_the_others() -> None:
    w = PUBLISHED.clone()
    w[0, 0] = 1e4
    assert find_order(w, moves=200_000).after - 1e4 > 2905


def test_several_matrices_get_one_order_as_if_they_were_one() -> None:
    parts = list(PUBLISHED.split([5, 100, 23]))
    one, several = (find_order(w, moves=50_000) for w in (PUBLISHED, parts))
    assert one.order.tolist() == several.order.tolist()
    assert several.after == pytest.approx(one.after)


def test_of_many_rows_some_are_searched_and_all_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = find_order(PUBLISHED, moves=200_000)
    monkeypatch.setattr(permutation, "_ROWS", 64)
    parts = list(PUBLISHED.split([5, 100, 23]))
    found = find_order(parts, moves=200_000)
    assert found.after == pytest.approx(kept(PUBLISHED[:, found.order]))
    assert 2870 < found.after < whole.after


def test_the_smallest_numbers_are_searched_too() -> None:
    assert find_order(PUBLISHED * 1e-310, moves=200_000).efficacy > 0.2


def test_what_it_took_is_told_and_ten_seconds_are_the_most_unless_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(permutation, "time", Clock(1.0))
    assert find_order(torch.ones(4, 4)).seconds == 1.0  # nothing to search
    w = torch.randn(64, 1024, generator=torch.Generator().manual_seed(2))
    assert 10 < find_order(w).seconds + 2 <= 14


def test_few_swaps_that_lose_are_not_kept() -> None:
    for seed in range(20):
        found = find_order(PUBLISHED, moves=1, seed=seed)
        assert found.after == kept(PUBLISHED[:, found.order]) >= found.before


def test_no_swap_is_within_a_group() -> None:
    pairs = permutation._pairs(np.random.default_rng(0), 12, 4, 1000)
    first, second = pairs.T // 4
    assert (first != second).all()
    assert {*map(tuple, pairs)} == {(a, b) for a in range(12) for b in range(12) if a // 4 != b // 4}


def test_nothing_to_gain_leaves_the_order() -> None:
    for w in (torch.ones(3, 8), torch.zeros(3, 8), torch.randn(5, 4)):
        found = find_order(w)
        assert found.order.tolist() == list(range(w.shape[1]))
        assert (found.efficacy, found.moves) == (0, 0)


@pytest.mark.parametrize(
    ("w", "options", "error", "message"),
    [
        (torch.ones(3, 6), {}, ArgumentError, "whole groups of 4"),
        (torch.ones(8), {}, ArgumentError, r"expected \(rows, columns\)"),
        (torch.ones(3, 8, dtype=torch.int64), {}, DTypeError, "floating-point"),
        ([], {}, ArgumentError, "no matrix does not fit"),
        ([torch.ones(3, 8), torch.ones(3, 4)], {}, ArgumentError, "the same columns"),
        (torch.tensor([[1.0, torch.nan] * 4]), {}, DataError, "NaN or an infinity"),
        (torch.rand(3, 8), {"moves": 0}, ArgumentError, "above zero"),
        (torch.rand(3, 8), {"seconds": 0.0}, ArgumentError, "above zero"),
        (torch.rand(3, 8), {"seconds": "1"}, ArgumentError, "seconds='1'; expected a budget above zero"),
        (torch.rand(3, 8), {"moves": 1.5}, ArgumentError, "moves=1.5 and"),
        (torch.rand(3, 8), {"moves": "9"}, ArgumentError, "moves='9' and"),
        (torch.rand(3, 8), {"seed": -1}, ArgumentError, "seed=-1; expected a whole number from 0 up"),
        (torch.rand(3, 8), {"seed": 1.5}, ArgumentError, "seed=1.5; expected"),
        (np.ones((3, 8)), {}, DTypeError, r"weights of type ndarray; expected a torch\.Tensor"),
        ([np.ones((3, 8))], {}, DTypeError, "weights of type ndarray"),
    ],
)
def test_bad_input_is_refused(w: Any, options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        find_order(w, **options)
