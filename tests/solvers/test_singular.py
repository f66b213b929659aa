"""Singular and nearly singular matrices are told on every path, and NaN is no answer."""

import warnings
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from scipy import linalg

from fewbits.errors import DataError
from fewbits.solvers import PRECISIONS, factorize, lstsq, solve
from fewbits.solvers.dense import plan
from tests.cases import pairs
from tests.solvers.systems import Array, randsvd


def dependent(n: int) -> Array:
    a = np.random.default_rng(n).standard_normal((n, n))
    a[:, n // 2] = a[:, 0] + a[:, 1]
    return a


def neumann(n: int) -> Array:
    a = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    a[0, 0] = a[-1, -1] = 1
    return a


def said(a: Array, b: Array, **how: Any) -> list[str]:
    """Return the warnings of a solution; a refusal counts as one."""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        try:
            solve(a, b, **how)
        except DataError as error:
            return [str(error)]
    return [str(w.message) for w in raised]


@pytest.mark.parametrize("least", [64, 10_000])
@pytest.mark.parametrize("n", [65, 150])
@pytest.mark.parametrize("make", [dependent, neumann, linalg.hilbert])
def test_singular_matrices_are_told_whatever_the_right_hand_side(
    make: Any, n: int, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "BEFORE_DOUBLE", {least: ("fp32",)})
    a = make(n)
    for b in (a @ np.ones(n), np.random.default_rng(0).standard_normal(n)):
        assert "singular" in said(a, b)[0]
        assert "singular" in said(1e-200 * a, b)[0]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_singular_matrices_are_told_in_every_precision(precision: str) -> None:
    a = dependent(90)
    assert "singular" in said(a, a @ np.ones(90), precision=precision)[0]


@pytest.mark.parametrize("precision", ["auto", "fp32", "fp64", "bf16x3"])
def test_singular_matrices_are_told_that_were_assumed_definite(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "BEFORE_DOUBLE", {64: ("fp32",)})
    half = np.random.default_rng(0).standard_normal((90, 89))
    for a in (neumann(90), half @ half.T):
        assert "singular" in said(a, a @ np.ones(90), precision=precision, assume_a="pos")[0]


def nearly(n: int) -> Array:
    """Return n - ones, whose null space is constant, and a little more."""
    return n * (1 + 2.0**-52) * np.eye(n) - np.ones((n, n))


NEARLY = [
    np.array([[3.0, -1], [-3, 1 + 2.0**-52]]),
    np.array([[0.1, -0.3], [-0.1, 0.3 + 2.0**-54]]),
    np.array([[1, -1], [-1, 1 + 2.0**-52]]),
    np.array([[1, 1], [1, 1 + 2.0**-52]]),
    np.array([[1j, -1], [-1j, 1 + 2.0**-52]]),
    *(linalg.block_diag(np.eye(n - 2), [[1, -1], [-1, 1 + 2.0**-52]]) for n in (3, 9, 16)),
    *map(nearly, (4, 6, 12)),
]


@pytest.mark.parametrize("precision", ["auto", "fp64", "fp32", "bf16x3"])
@pytest.mark.parametrize("a", NEARLY, ids=lambda a: str(len(a)))
def test_small_matrices_that_are_nearly_singular_are_told(a: Array, precision: str) -> None:
    n = len(a)
    assert np.linalg.cond(a, np.inf) > 2.0**53 / (4 * n**0.5)  # from there on the manual promises it
    b = np.linspace(1, 0.3, n)
    assert "singular to working precision" in said(a, b, precision=precision)[0]
    assert "singular to working precision" in said(np.stack([np.eye(n), a]), b, precision=precision)[0]
    with pytest.warns(RuntimeWarning, match="singular to working precision"):
        assert factorize(a, precision).solve(b).condition == np.inf


def test_small_matrices_below_the_bound_are_not_called_singular() -> None:
    for n in (2, 3, 6, 16):
        a = n * (1 + 2.0**-44) * np.eye(n) - np.ones((n, n))
        assert said(a, np.ones(n)) == said(np.stack([a, a]), np.ones(n)) == []
        exact = np.linalg.cond(a, np.inf)
        found: Any = factorize(a).solve(np.ones(n)).condition
        assert found == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize("n", [17, 18, 20, 33, 64, 100])
def test_two_rows_that_cancel_are_told_wherever_they_are(n: int) -> None:
    """Their null vector has two entries: probes of one magnitude would miss it in one case of four."""
    a = np.eye(n)
    for i, j in [*combinations(range(17), 2)][:: n // 4]:
        near = a.copy()
        near[np.ix_([i, j], [i, j])] = [[1, -1], [-1, 1 + 2.0**-52]]
        assert "singular to working precision" in said(near, np.ones(n))[0]
        assert "singular to working precision" in said(np.stack([a, near]), np.ones(n))[0]


def with_small(n: int, small: list[float]) -> Array:
    """Return a matrix of these singular values, the others 1."""
    rng = np.random.default_rng(n)
    u, v = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
    return (u * [*[1.0] * (n - len(small)), *small]) @ v.T


NARROW = ["fp32", "bf16", "tf32", "int8x2", "mx9"]


@pytest.mark.parametrize("precision", NARROW)
@pytest.mark.parametrize("small", [[1e-10, 1e-17], [1e-9, 1e-13, 1e-17], [*np.logspace(-9, -17, 8)]], ids=len)
def test_the_smallest_of_several_singular_values_that_factors_hide_is_found(
    small: Any, precision: str
) -> None:
    a = with_small(60, small)
    with pytest.warns(RuntimeWarning, match="singular to working precision"):
        found: Any = factorize(a, precision).solve(np.ones(60))
    assert len(found.stages) == 1
    assert found.condition == np.inf
    assert found.forward_error > 0.01  # no digit is certain


@pytest.mark.parametrize("precision", NARROW)
def test_several_small_singular_values_below_the_bound_are_the_condition(precision: str) -> None:
    a = with_small(60, [1e-5, 1e-7, 1e-9, 1e-11])
    assert said(a, np.ones(60), precision=precision) == []
    found: Any = factorize(a, precision).solve(np.ones(60)).condition
    exact = np.linalg.cond(a, np.inf)
    assert exact / 20 < found < 5 * exact


@pytest.mark.parametrize("assume_a", ["gen", "pos"])
@pytest.mark.parametrize("precision", ["fp64", *NARROW])
def test_small_hilbert_matrices_are_told_in_every_precision(precision: str, assume_a: str) -> None:
    n = 12
    a, inverse = linalg.hilbert(n), linalg.invhilbert(n)
    # No scaling of rows and columns has a smaller condition (Bauer, Optimally Scaled Matrices, 1963).
    assert np.linalg.eigvals(np.abs(inverse) @ a).real.max() > 2.0**53 / (4 * n**0.5)
    assert "singular to working precision" in said(a, np.ones(n), precision=precision, assume_a=assume_a)[0]


SOUND = ((1, 2, 3, 4), (64, 10_000), (1e2, 1e6, 1e9, 1e11))  # modes, least sizes for float32, conditions


def unsuspected(mode: int, least: int, condition: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "BEFORE_DOUBLE", {least: ("fp32",)})
    a = randsvd(condition, mode, 120)
    assert said(a, np.ones(120)) == []
    assert said(a * np.logspace(-90, 90, 120), np.ones(120)) == []


@pytest.mark.parametrize(("mode", "least", "condition"), pairs(*SOUND))
def test_what_is_not_singular_is_not_called_so(
    mode: int, least: int, condition: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsuspected(mode, least, condition, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "least", "condition"), list(product(*SOUND)))
def test_nothing_that_is_not_singular_is_called_so(
    mode: int, least: int, condition: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsuspected(mode, least, condition, monkeypatch)


def test_the_condition_is_within_its_sizes_or_not_said() -> None:
    for condition in (1e3, 1e7, 1e10, 1e18):
        for precision in ("fp64", "fp32"):
            a = randsvd(condition, 2, 100)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                found: Any = factorize(a, precision).solve(np.ones(100)).condition
            exact = np.linalg.cond(a, np.inf)
            assert exact / 20 < found < 5 * exact if condition < 1e15 else found == np.inf


def test_without_the_search_narrow_factors_hide_a_singular_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr(plan, "BEFORE_DOUBLE", {64: ("fp32",)})
    monkeypatch.setattr("fewbits.solvers.dense.condition._largest_magnification", lambda *_: 0.0)
    a = dependent(150)
    assert said(a, a @ np.ones(150)) == []


@pytest.mark.parametrize("n", [40, 1300])
def test_a_solution_without_numbers_is_not_called_one(n: int) -> None:
    a = np.triu(np.random.default_rng(0).standard_normal((n, n)))
    a[0, 0] = 1e-300 if n == 40 else a[0, 0]
    b = np.full(n, 1e300)
    # The columns of the small one, equilibrated, are far from dependent: only its solution is too large.
    told = "^x holds NaN or infinity" if n == 40 else "singular to working precision"
    with pytest.warns(RuntimeWarning, match=told):
        found: Any = factorize(a).solve(b)
    if not np.isfinite(found.x).all():
        assert not found.converged
        assert found.stages[-1].code < 0
        assert not found.backward_error < 1
        assert not found.componentwise_error < 1
        assert found.forward_error == np.inf
    assert np.isfinite(found.x).all() or n == 40 or found.stages[-1].code < 0


def test_pivots_that_grow_beyond_double_precision_leave_the_system_to_qr() -> None:
    n = 1100  # the last pivot of Wilkinson's matrix is 2^(n - 1), its condition number about n
    a = np.eye(n) - np.tril(np.ones((n, n)), -1)
    a[:, -1] = 1
    x = np.random.default_rng(0).standard_normal(n)
    found = factorize(a).solve(a @ x)
    assert found.converged
    assert [s.method for s in found.stages][-2:] == ["LU", "QR"]
    assert np.abs(found.x - x).max() < 1e-9


@pytest.mark.parametrize("precision", ["bf16", "bf16x3", "fp16", "tf32", "fp32", "auto"])
def test_small_systems_that_are_nearly_singular_are_solved_or_refused_in_words(precision: str) -> None:
    rng, refused = np.random.default_rng(0), []
    for i in range(120):
        n = 2 + i % 3
        a = rng.standard_normal((n, n)).round(2)
        a[-1] = a[0] * rng.standard_normal() + rng.standard_normal(n) * 10.0 ** -rng.uniform(5, 13)
        b = rng.standard_normal(n).round(2)
        condition = np.linalg.cond(a)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                x = solve(a, b, precision=precision)
        except DataError as error:
            refused.append((str(error), condition))
            continue
        wanted = np.linalg.solve(a, b)
        assert np.abs(x - wanted).max() <= 1e-13 * condition * np.abs(wanted).max() + 1e-12, (i, condition)
    assert all("singular" in said and condition > 1e12 for said, condition in refused)


def test_entries_that_underflow_are_said_where_the_residual_shows_them() -> None:
    a, b = np.array([[1, 1e200], [1, -1e200]]), np.array([1e-150, 0])
    for precision in ("fp64", "fp32", "auto"):
        with pytest.warns(RuntimeWarning, match="what counts of it, lies below the normal numbers"):
            assert not factorize(a, precision).solve(b).converged
    with pytest.warns(RuntimeWarning, match="what counts of it, is outside the normal numbers"):
        found = lstsq(a, b)
    assert not found.converged
    assert np.isnan(found.residual)
    # Beside larger ones they count for nothing.
    a = np.array([[1.0, 1.0], [1.0, -1.0]]) * [1, 1e30]
    b = np.array([1e-290, 1e-290 * (1 - 2.0**-52)])
    for found in (factorize(a).solve(b), lstsq(a, b)):
        assert found.converged
        assert np.abs(b - a @ found.x).max() <= 4 * np.finfo(float).eps * np.abs(b).max()
