"""Masks under a pattern, against brute force over all choices and against NumPy's sort."""

from fractions import Fraction
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch

from fewbits.errors import ArgumentError, DTypeError, FormatError
from fewbits.formats import pattern as read
from fewbits.kernels.bits.nm_stream import by_magnitude
from fewbits.sparsity import density, is_sparse, kept_magnitude, mask, transposable_mask
from fewbits.sparsity.masks import keep_, partial_mask

PATTERNS = ("1:2", "2:4", "4:8", "1:4", "3:4", "2:3", "3:16")
SMALL = ("1:2", "2:4", "1:4", "3:4", "2:3")


def weights(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def sorted_mask(w: torch.Tensor, keep: int, group: int) -> np.ndarray:
    """The definition along the last axis, by a stable sort of each group."""
    groups = np.abs(w.float().numpy()).reshape(-1, group)
    order = np.argsort(-groups, axis=1, kind="stable")
    found = np.zeros(groups.shape, bool)
    np.put_along_axis(found, order[:, :keep], True, axis=1)
    return found.reshape(tuple(w.shape))


def sizes(pattern: str) -> tuple[int, int]:
    keep, _, group = pattern.partition(":")
    return int(keep), int(group)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_mask_is_the_stable_sort_of_each_group(pattern: Any, dtype: Any) -> None:
    w = weights(6, 5 * sizes(pattern)[1], dtype=dtype)
    assert np.array_equal(mask(w, pattern).numpy(), sorted_mask(w, *sizes(pattern)))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_masks_of_float8_are_those_of_its_values(dtype: Any) -> None:
    w = weights(8, 16, dtype=dtype)
    for found in (mask, transposable_mask):
        assert torch.equal(found(w, "2:4"), found(w.float(), "2:4"))
    assert density(w) == density(w.float())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_mask_is_the_one_by_which_files_are_narrowed(pattern: Any) -> None:
    w = weights(40, 4 * sizes(pattern)[1]).mul(2).round()  # with many ties
    w[3, 5], w[4, 1], w[4, 3] = torch.nan, torch.inf, torch.nan
    assert np.array_equal(mask(w, pattern).numpy(), by_magnitude(w.numpy(), read(pattern)))


def test_equal_magnitudes_keep_the_ones_that_come_first() -> None:
    every = torch.tensor(list(product([-1.0, 0.0, 1.0, 2.0], repeat=4)))
    assert np.array_equal(mask(every, "2:4").numpy(), sorted_mask(every, 2, 4))
    assert mask(torch.zeros(4), "2:4").tolist() == [True, True, False, False]


def test_no_choice_of_two_of_four_keeps_more() -> None:
    w = weights(200, 4)
    best = torch.stack([w[:, list(pair)].abs().sum(-1) for pair in combinations(range(4), 2)]).amax(0)
    assert torch.equal((w.abs() * mask(w, "2:4")).sum(-1), best)
    worse = mask(-w, "2:4").roll(1, -1)  # the control: another mask of the same density
    assert not torch.allclose((w.abs() * worse).sum(-1), best)


def test_nan_and_infinity_are_kept_and_the_pattern_holds() -> None:
    w = torch.tensor([[1.0, torch.nan, 2.0, torch.inf], [torch.nan] * 4, [torch.inf, 3.0, torch.nan, 4.0]])
    found = mask(w, "2:4")
    assert found.tolist()[0] == [False, True, False, True]
    assert (found.sum(-1) == 2).all()


def test_convolutions_are_grouped_along_their_input_channels() -> None:
    w = weights(6, 8, 3, 5)
    rows = w.permute(2, 3, 0, 1).reshape(-1, 8)  # (R S K, C)
    expected = mask(rows, "2:4").reshape(3, 5, 6, 8).permute(2, 3, 0, 1)
    assert torch.equal(mask(w, "2:4", axis=1), expected)
    assert is_sparse(w * expected, "2:4", axis=1)
    assert mask(w, "2:4", axis=1).is_contiguous()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_is_masked_is_sparse_and_one_value_more_is_not(pattern: Any) -> None:
    keep, group = sizes(pattern)
    w = weights(3, 4 * group)
    masked = w * mask(w, pattern)
    assert not is_sparse(w, pattern)
    assert is_sparse(masked, pattern)
    assert density(masked) == pytest.approx(keep / group)
    masked[1, group + int((masked[1, group : 2 * group] == 0).int().argmax())] = 1e-30
    assert not is_sparse(masked, pattern)


def best_tile(tile: torch.Tensor, keep: int) -> float:
    """The most that a tile can keep, over all sets of rows."""
    m = len(tile)
    rows = list(combinations(range(m), keep))
    found = 0.0
    for chosen in product(rows, repeat=m):
        if all(sum(c in row for row in chosen) <= keep for c in range(m)):
            found = max(found, sum(float(tile[r, list(row)].sum()) for r, row in enumerate(chosen)))
    return found


@pytest.mark.parametrize("pattern", SMALL)
def test_the_optimal_transposable_mask_is_the_best_of_all_tiles(pattern: Any) -> None:
    keep, group = sizes(pattern)
    w = weights(2 * group, 3 * group)
    found = transposable_mask(w, pattern)
    for r in range(0, 2 * group, group):
        for c in range(0, 3 * group, group):
            tile, kept = (x[r : r + group, c : c + group] for x in (w.abs(), found))
            assert float((tile * kept).sum()) == pytest.approx(best_tile(tile, keep), rel=1e-6)
            assert (kept.sum(0) == keep).all()
            assert (kept.sum(1) == keep).all()


def test_two_of_four_has_ninety_tiles() -> None:
    from fewbits.formats import Pattern
    from fewbits.sparsity.masks import _tiles

    assert len(_tiles(Pattern(2, 4))) == len({tuple(t) for t in _tiles(Pattern(2, 4))}) == 90


@pytest.mark.parametrize("search", ["greedy", "optimal"])
def test_a_transposable_mask_holds_both_ways_and_optimal_keeps_more(search: Any) -> None:
    w = weights(64, 128)
    found = transposable_mask(w, "2:4", search=search)
    assert is_sparse(w * found, "2:4")
    assert is_sparse((w * found).mT, "2:4")
    assert not is_sparse((w * mask(w, "2:4")).mT, "2:4")  # the control: one axis alone does not give both
    kept = {s: kept_magnitude(w, transposable_mask(w, "2:4", search=s)) for s in ("greedy", "optimal")}
    assert kept["greedy"] < kept["optimal"] < kept_magnitude(w, mask(w, "2:4"))


def test_greedy_takes_the_largest_while_there_is_room() -> None:
    tile = torch.tensor([[9.0, 8, 7, 0], [6, 5, 4, 0], [3, 2, 1, 0], [0, 0, 0, 0.5]])
    found = transposable_mask(tile, "2:4", search="greedy")
    assert found.int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    assert is_sparse(weights(16, 24) * transposable_mask(weights(16, 24), "4:8", search="greedy"), "4:8")


def test_transposable_masks_of_convolutions_are_those_of_each_place_of_the_kernel() -> None:
    w = weights(8, 12, 3, 2)
    found = transposable_mask(w, "2:4")
    for r, s in product(range(3), range(2)):
        assert torch.equal(found[:, :, r, s], transposable_mask(w[:, :, r, s], "2:4"))


def exact_rank(tile: torch.Tensor, kept: torch.Tensor) -> tuple[int, Fraction]:
    """How many infinities a mask keeps, and the exact sum of the finite magnitudes."""
    values = tile[kept].abs().tolist()
    return values.count(torch.inf), sum((Fraction(v) for v in values if v < torch.inf), Fraction(0))


@pytest.mark.parametrize("pattern", ["1:2", "2:4", "2:3"])
@pytest.mark.parametrize("largest", [1e-310, 1.0, 1e39, 2.0**1022, 1.7e308])
@pytest.mark.parametrize("infinities", [0, 1, 2])
def test_large_values_and_those_beside_infinities_are_compared_too(
    pattern: str, largest: float, infinities: int
) -> None:
    keep, m = sizes(pattern)
    rows = [torch.tensor([i in chosen for i in range(m)]) for chosen in combinations(range(m), keep)]
    every = [torch.stack(tile) for tile in product(rows, repeat=m)]
    every = [tile for tile in every if (tile.sum(0) == keep).all()]
    for seed in range(5):
        tile = torch.rand(m, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * largest
        tile.view(-1)[seed : seed + infinities] = torch.inf
        best = max(exact_rank(tile, kept) for kept in every)
        assert exact_rank(tile, transposable_mask(tile, pattern)) == best


def test_infinities_do_not_spoil_a_tile() -> None:
    w = weights(4, 4)
    w[0, 0], w[3, 1] = torch.inf, torch.nan
    assert transposable_mask(w, "2:4")[0, 0]
    assert transposable_mask(w, "2:4")[3, 1]


def test_a_share_drops_the_smallest_of_what_the_pattern_drops_to_the_nearest_number() -> None:
    w = torch.tensor([1.0, -3.0, 2.0, 9.0, 8.0, 0.5, 0.0, 7.0])
    final = torch.tensor([False, False, False, True, True, False, True, True])
    dropped = {0.0: [], 0.3: [5], 0.4: [0, 5], 0.7: [0, 2, 5], 1.0: [0, 1, 2, 5]}
    for share, places in dropped.items():
        assert (~partial_mask(w, final, share)).nonzero()[:, 0].tolist() == places


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_what_a_mask_drops_becomes_plus_zero_whatever_it_was(dtype: Any) -> None:
    x = weights(8, 12, dtype=dtype).T
    x[0, 0], x[1, 1], x[2, 2], x[3, 3] = torch.nan, torch.inf, -1.0, -2.0
    kept = weights(12, 8, seed=1) > 0
    kept[range(4), range(4)] = torch.tensor([False, False, False, True])
    expected = torch.where(kept, x, 0.0)
    keep_(x, kept)
    assert torch.equal(x, expected)
    assert not x[~kept].signbit().any()
    assert x[3, 3] == -2


def test_kept_magnitude_and_density_are_shares() -> None:
    w = torch.tensor([3.0, -1.0, 0.0, 4.0])
    assert kept_magnitude(w, mask(w, "2:4")) == 0.875
    assert density(w) == 0.75
    assert kept_magnitude(torch.zeros(4), mask(torch.zeros(4), "2:4")) == density(torch.ones(0)) == 1.0


def test_a_mask_of_another_shape_is_refused() -> None:
    for shape in ((2, 8), (4,), (4, 2)):
        with pytest.raises(ArgumentError, match=r"for weights of shape \(4, 4\); expected their own"):
            kept_magnitude(torch.ones(4, 4), torch.ones(shape, dtype=torch.bool))


def test_a_normal_matrix_keeps_the_share_of_the_two_largest_of_four() -> None:
    w = weights(1000, 400)
    pairs = np.sort(np.abs(np.random.default_rng(1).standard_normal((100_000, 4))), axis=1)
    assert kept_magnitude(w, mask(w, "2:4")) == pytest.approx(pairs[:, 2:].sum() / pairs.sum(), abs=2e-3)


def test_masks_of_nothing_are_empty() -> None:
    assert mask(torch.zeros(0, 8), "2:4").shape == (0, 8)
    assert transposable_mask(torch.zeros(0, 8), "2:4").shape == (0, 8)
    assert is_sparse(torch.zeros(3, 0), "2:4")


@pytest.mark.parametrize("call", [mask, is_sparse, transposable_mask])
def test_what_does_not_fit_is_refused_with_advice(call: Any) -> None:
    with pytest.raises(ArgumentError, match=r"shape \(4, 6\) does not fit 2:4.*multiple of 4.*dense"):
        call(torch.zeros(4, 6), "2:4")
    with pytest.raises(DTypeError, match=r"weights of torch.int8; expected floating-point"):
        call(torch.zeros(4, 4, dtype=torch.int8), "2:4")
    with pytest.raises(DTypeError, match=r"weights of type list; expected a torch\.Tensor"):
        call([[1.0, 0.0, 0.0, 0.0]], "2:4")
    with pytest.raises(FormatError, match="written N:M"):
        call(torch.zeros(4, 4), "half")


def test_transposable_masks_say_what_they_cannot_do() -> None:
    with pytest.raises(ArgumentError, match="search='best' is not one of greedy, optimal"):
        transposable_mask(torch.zeros(4, 4), "2:4", search="best")
    with pytest.raises(ArgumentError, match="too many for 4:8; use search='greedy'"):
        transposable_mask(torch.zeros(8, 8), "4:8")
    with pytest.raises(ArgumentError, match="has no transpose"):
        transposable_mask(torch.zeros(8), "2:4")
    with pytest.raises(ArgumentError, match=r"axis=2 is out of range"):
        mask(torch.zeros(4, 4), "2:4", axis=2)
