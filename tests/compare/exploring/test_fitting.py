"""Fitted tables: the least error that any table has, as brute force over all cuts finds it."""

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from fewbits.compare.exploring.fitting import fitted_table, optimal_values
from fewbits.compare.exploring.sweep import qsnr_of
from fewbits.compare.exploring.vectors import vectors_of
from fewbits.formats import Block, Exponent, Float, Lookup, parse
from tests.compare.exploring import definitions as d

FP32 = Float(8, 23, 127, "ieee")
E4M3 = Float(4, 3, 7, "fn")
E5M2 = Float(5, 2, 15, "ieee")

# Places on a grid of 16 cells, with weights; some places are many times there.
pairs = st.tuples(st.integers(0, 15), st.integers(1, 4))
samples = st.lists(pairs, min_size=1, max_size=9)


def error(x: Any, w: Any, table: Any) -> float:
    return float((w * np.square(x[:, None] - np.asarray(table)).min(axis=1)).sum())


def least(x: Any, w: Any, count: int, fixed: float | None) -> float:
    """Cut the sorted values everywhere; each part goes to its mean, the last one to what is fixed."""
    order = np.argsort(x)
    x, w = x[order], w[order]
    best = np.inf
    for parts in range(1, count + 1):
        for cuts in combinations(range(len(x) + 1), parts - 1):
            ends = [0, *cuts, len(x)]
            total = 0.0
            for i, (a, b) in enumerate(pairwise(ends)):
                if a < b:
                    mean = np.average(x[a:b], weights=w[a:b])
                    to = fixed if fixed is not None and i == parts - 1 else mean
                    total += float((w[a:b] * np.square(x[a:b] - to)).sum())
            best = min(best, total)
    return best


@given(sample=samples, count=st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_no_table_has_a_smaller_error(sample: Any, count: int) -> None:
    places, weights = (np.array(of, float) for of in zip(*sample, strict=True))
    x = (places + 0.5) / 8 - 1
    table = optimal_values(x, weights, count, 1.0, cells=16)
    assert len(table) <= count
    assert error(x, weights, table) == pytest.approx(least(x, weights, count, None), abs=1e-9)


@given(sample=samples, count=st.integers(2, 4))
@settings(max_examples=200, deadline=None)
def test_no_table_with_one_at_the_top_has_a_smaller_error(sample: Any, count: int) -> None:
    places, weights = (np.array(of, float) for of in zip(*sample, strict=True))
    x = (places + 0.5) / 8 - 1
    table = optimal_values(x, weights, count, 1.0, fixed=1.0, cells=16)
    assert len(table) <= count
    assert max(table) == 1
    assert error(x, weights, table) == pytest.approx(least(x, weights, count, 1.0), abs=1e-9)


def test_equal_steps_are_worse_so_that_a_table_that_is_not_fitted_would_be_seen() -> None:
    x = np.random.default_rng(0).laplace(size=4000)
    x = x[abs(x) < 6] / 6
    w = np.ones_like(x)
    fitted = optimal_values(x, w, 8, 1.0)
    assert error(x, w, fitted) < 0.6 * error(x, w, np.linspace(-1, 1, 8))
    # scikit-learn's k-means starts there and finds no better.
    means = KMeans(8, init=fitted[:, None], n_init=1, random_state=0).fit(x[:, None])
    assert error(x, w, fitted) == pytest.approx(means.inertia_, rel=1e-3)


@pytest.mark.parametrize(("scale", "outer"), [(FP32, None), (E4M3, FP32), (Exponent(8), None)])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_a_table_fitted_to_the_data_beats_those_that_are_not(scale: Any, outer: Any, bits: int) -> None:
    values = vectors_of("laplace", 200, 0, "floor").values
    table = fitted_table(values, bits, scale, 16, outer)
    assert table is not None
    assert len(set(table.element.values)) == 2**bits if isinstance(table.element, Lookup) else False
    assert parse(str(table)) == table
    integers = Block(parse(f"int({bits},coding=symmetric)").element, scale, 16, outer)
    assert qsnr_of(values, table, "floor") > qsnr_of(values, integers, "floor") + 0.5


def test_the_largest_of_a_block_stays_what_it_is_under_a_real_scale() -> None:
    values = vectors_of("variance", 50, 0, "floor").values
    table = fitted_table(values, 4, FP32, 16)
    assert table is not None
    assert table.element.max == 1
    assert -1 <= table.element.min < -0.9
    power = fitted_table(values, 4, Exponent(8), 16)
    assert power is not None
    assert 1 <= power.element.max < 2


def test_values_that_make_no_table_give_none() -> None:
    for scale in (Exponent(8), FP32):
        assert fitted_table(np.full((2, 16), 1, np.float32), 2, scale, 16) is None  # one value only


def test_values_below_zero_alone_have_a_table_that_is_exact() -> None:
    values = np.full((2, 16), -1, np.float32)
    table = fitted_table(values, 2, Exponent(8), 16)
    assert table is not None
    assert qsnr_of(values, table, "floor") == np.inf


# A scale of two mantissa bits, which is rounded by up to an eighth; and powers of two, which a rule chooses.
SCALES = [
    (Exponent(8), "floor"),
    (Exponent(8), "ceil"),
    (Exponent(8), "even"),
    (E5M2, "floor"),
    (FP32, "floor"),
]


@pytest.mark.parametrize("size", [8, 32, 128])
@pytest.mark.parametrize(("scale", "rule"), SCALES)
def test_no_nudge_of_a_fitted_value_loses_less_in_the_codec(scale: Any, rule: str, size: int) -> None:
    values = vectors_of("gaussian", 200, 0, "floor").values
    for bits in (2, 3):
        table = fitted_table(values, bits, scale, size, None, rule)
        assert table is not None
        assert isinstance(table.element, Lookup)
        found = qsnr_of(values, table, rule)
        of = table.element.values
        assert of[-1] >= 1  # below, a scale that is a power of two would be another one
        for i in range(len(of) - 1):  # the largest one is what the scales are chosen by
            for nudge in (-0.03, 0.03):
                moved = Lookup((*of[:i], of[i] + nudge, *of[i + 1 :]))
                assert qsnr_of(values, Block(moved, scale, size), rule) < found


@pytest.mark.parametrize("size", [8, 32, 128])
def test_the_codec_scales_a_table_as_the_fit_did(size: int) -> None:
    values = vectors_of("gaussian", 400, 0, "floor").values
    wide = values.astype(np.float64)
    for bits in (2, 3, 4):
        table = fitted_table(values, bits, Exponent(8), size)
        assert table is not None
        assert isinstance(table.element, Lookup)
        rounded = d.power_of_two_block(wide, np.array(table.element.values), 0, size)
        assert qsnr_of(values, table, "floor") == pytest.approx(d.qsnr(wide, rounded), abs=1e-4)
        assert qsnr_of(values, table, "floor") > (8.5, 14, 20)[bits - 2]


def test_a_table_is_fitted_for_the_rule_that_rounds() -> None:
    values = vectors_of("gaussian", 200, 0, "floor").values
    floor, ceil = (fitted_table(values, 3, Exponent(8), 16, None, rule) for rule in ("floor", "ceil"))
    assert floor is not None
    assert ceil is not None
    assert qsnr_of(values, ceil, "ceil") > qsnr_of(values, floor, "ceil") + 0.5
    assert qsnr_of(values, floor, "floor") > qsnr_of(values, ceil, "floor") + 0.5


def test_zeros_beyond_the_end_of_a_line_do_not_count_and_those_of_the_line_do() -> None:
    values = np.array([[1, -1, 0.5, -0.5] * 5], np.float32)
    table = fitted_table(values, 2, FP32, 16)
    assert table is not None
    assert set(np.abs(table.element.values) if isinstance(table.element, Lookup) else ()) == {1.0, 0.5}
    sparse = np.array([[1, -1, 0, 0, 0, 0, 0, 0.5] * 2], np.float32)
    for scale in (FP32, Exponent(8)):
        table = fitted_table(sparse, 2, scale, 16)
        assert table is not None
        assert qsnr_of(sparse, table, "floor") == np.inf


def test_a_block_counts_by_its_scale() -> None:
    # One block of a scale of 100 against three of a scale of one, which have a quarter where it has a half.
    large, small = np.array([1, -1, 0.5, -0.5] * 4) * 100, np.array([1, -1, 0.25, -0.25] * 4)
    table = fitted_table(np.stack([large, small, small, small]).astype(np.float32), 2, FP32, 16)
    assert table is not None
    assert isinstance(table.element, Lookup)
    assert table.element.values == (-1.0, -0.5, 0.5, 1.0)
