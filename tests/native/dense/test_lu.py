"""LU factors: within the definition's bound on every instruction set, the same for any number of threads."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg.lapack import dlaswp

from fewbits.kernels import native
from fewbits.kernels.reference.dense import lu as reference
from tests import cases

# Around the columns that are factorized together, those of a copied block, and the depth of a product.
SHAPES = (
    *((1, 1), (2, 1), (5, 3), (31, 31), (33, 32), (33, 33), (47, 35), (64, 64), (97, 65), (128, 128)),
    *((131, 129), (300, 257), (401, 300), (777, 520)),
)
HELD = ("whole", "padded")
TYPES = (np.float32, np.float64)


def matrix(m: int, n: int, held: str = "whole", dtype: Any = np.float32) -> Any:
    """Return (m, n) of very different sizes; with ``padded`` as a part of wider rows."""
    generator = np.random.default_rng(m * 1000 + n)
    wide = generator.standard_normal((m, n + 5)) * 2.0 ** generator.integers(-6, 6, (m, n + 5))
    rounded = wide.astype(dtype)
    return rounded[:, 3 : n + 3] if held == "padded" else np.ascontiguousarray(rounded[:, :n])


def excess(a: NDArray[Any], factors: NDArray[Any], exchanges: NDArray[np.int64]) -> float:
    """Return the largest |P A - L U| over its bound, computed with more digits than the factors have."""
    m, n = a.shape
    wider, roundoff = (np.longdouble, 2.0**-53) if a.dtype == np.float64 else (np.float64, 2.0**-24)
    permuted = a.astype(wider)
    for i, j in enumerate(exchanges):
        assert i <= j < m
        permuted[[i, j]] = permuted[[j, i]]
    lower, upper = (
        np.tril(factors, -1).astype(wider) + np.eye(m, n),
        np.triu(factors[:n]).astype(wider),
    )
    sizes = np.abs(lower).astype(np.float64) @ np.abs(upper).astype(np.float64)  # enough for a bound
    bound = n * roundoff / (1 - n * roundoff) * sizes
    off = np.abs(permuted - lower @ upper)
    return float(np.where(off == 0, 0.0, off / np.where(bound == 0, 2.0**-1074, bound)).max())


@pytest.mark.parametrize(
    ("shape", "isa", "held", "threads", "dtype"),
    cases.pairs(SHAPES, native.available_isas(), HELD, (1, 2, 3), TYPES),
)
def test_every_instruction_set_keeps_the_bound(
    shape: Any, isa: str, held: str, threads: int, dtype: Any
) -> None:
    native.force_isa(isa)
    a = matrix(*shape, held, dtype)
    factors = a.copy() if held == "whole" else np.concatenate([a, a], 1)[:, : shape[1]]
    exchanges = native.factorize_lu(factors, threads)
    assert np.abs(np.tril(factors, -1)).max(initial=0) <= 1
    assert excess(a, factors, exchanges) <= 1
    if shape[0] > 2:  # the control: a factor off by a thousandth
        factors[shape[0] // 2, 0] += 2.0**-10
        assert excess(a, factors, exchanges) > 1


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(5, 3), (40, 40), (97, 65)])
def test_the_definition_keeps_its_bound(shape: Any, dtype: Any) -> None:
    a = matrix(*shape, dtype=dtype)
    assert excess(a, *reference.factorize_lu(a)) <= 1


@pytest.mark.parametrize("dtype", TYPES)
def test_threads_and_instruction_sets_with_fused_multiply_adds_give_the_same_bits(dtype: Any) -> None:
    a = matrix(700, 600, dtype=dtype)
    fused, rounded = set(), set()
    for isa in native.available_isas():
        native.force_isa(isa)
        for threads in (1, 2, 3):
            factors = a.copy()
            exchanges = native.factorize_lu(factors, threads)
            (rounded if isa == "baseline" else fused).add(factors.tobytes() + exchanges.tobytes())
    assert len(fused) <= 1
    assert len(rounded) == 1
    assert not fused & rounded  # the control: the baseline rounds each product


@pytest.mark.parametrize("dtype", TYPES)
def test_integers_are_factorized_exactly_and_every_exchange_is_the_definitions(isa: str, dtype: Any) -> None:
    """Small whole multiples and pivots that are powers of two: nothing is rounded, in any order of sums."""
    generator = np.random.default_rng(0)
    n = 150
    lower = np.tril(generator.integers(-1, 2, (n, n)) / 2.0, -1) + np.eye(n)
    upper = np.triu(generator.integers(-1, 2, (n, n)), 1) * (generator.random((n, n)) < 0.02) + 2 * np.eye(n)
    a = (lower @ upper)[generator.permutation(n)].astype(dtype)
    expected, exchanges = reference.factorize_lu(a)
    for threads in (1, 2):
        factors = a.copy()
        assert native.factorize_lu(factors, threads).tolist() == exchanges.tolist()
        assert np.array_equal(factors, expected)


@pytest.mark.parametrize("dtype", TYPES)
def test_zero_columns_nan_and_infinity_show_on_the_diagonal(isa: str, dtype: Any) -> None:
    for n in (40, 200):
        a = matrix(n, n, dtype=dtype)
        a[:, 7] = 0
        factors = a.copy()
        native.factorize_lu(factors, 2)
        assert factors[7, 7] == 0
        for value in (np.nan, np.inf):
            a = matrix(n, n, dtype=dtype)
            a[n // 2, n // 3] = value
            native.factorize_lu(a, 2)
            assert not np.isfinite(a.diagonal()).all()


def test_what_does_not_fit_is_refused() -> None:
    a = matrix(9, 9)
    for given, said in ((a.T, "follow each other"), (a[:8], "as many rows as columns")):
        with pytest.raises(ValueError, match=said):
            native.factorize_lu(given, 1)


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (300, 40), (2000, 700)], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("held", HELD)
def test_rows_change_places_as_lapack_has_them(shape: tuple[int, int], threads: int, held: str) -> None:
    a = matrix(*shape, held)
    order = np.random.default_rng(5)
    exchanges = np.array([order.integers(i, len(a)) for i in range(min(len(a), 200))])
    wide = a.copy() if held == "whole" else np.concatenate([a, a], 1)
    found = wide[:, : shape[1]]
    native.exchange_rows(found, exchanges, threads)
    assert np.array_equal(found, dlaswp(a.astype(float), exchanges))
    assert held == "whole" or np.array_equal(wide[:, shape[1] :], a)


def test_rows_beyond_a_matrix_are_refused() -> None:
    a = matrix(3, 2)
    for wrong in ([3], [-1], [0, 1, 2, 0]):
        before = a.copy()
        with pytest.raises(ValueError, match=r"rows change places with rows|an exchange for each row"):
            native.exchange_rows(a, np.array(wrong), 1)
        assert np.array_equal(a, before)
