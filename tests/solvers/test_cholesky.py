"""Positive definite systems through Cholesky, and what happens to those that are not."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import linalg

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers import PRECISIONS, factorize, solve
from fewbits.solvers.dense import plan
from fewbits.solvers.dense.cholesky import to_shifted_single
from tests.solvers.systems import Array, N, checked


def definite(condition: float, seed: int = 0, n: int = N) -> Array:
    """Return a symmetric matrix with eigenvalues in geometric progression."""
    q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))
    found: Array = q * np.logspace(0, -np.log10(condition), n) @ q.T
    return (found + found.T) / 2


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "BEFORE_DOUBLE", {64: ("fp32",)})


@pytest.mark.parametrize("name", PRECISIONS)
def test_every_precision_reaches_double_accuracy(name: str) -> None:
    found = checked(definite(1e2), name, assume_a="pos")
    assert [(s.precision, s.method) for s in found.stages] == [(name, "Cholesky")]


@pytest.mark.parametrize("condition", [1e2, 1e5, 1e8, 1e12, 1e15])
def test_whatever_the_condition(condition: float) -> None:
    found = checked(definite(condition), assume_a="pos")
    assert found.fell_back == (condition >= 1e8)
    assert found.stages[-1].method == ("Cholesky" if condition < 1e15 else found.stages[-1].method)


def test_scales_of_the_unknowns_do_not_matter() -> None:
    scales = np.logspace(-12, 12, N)
    for precision in ("auto", "fp16"):
        assert not checked(scales[:, None] * definite(1e2) * scales, precision, assume_a="pos").fell_back


def test_one_that_is_not_definite_goes_to_lu() -> None:
    a = definite(1e2)
    a -= 0.1 * np.eye(N)
    found = checked(a, "fp32", assume_a="pos")
    assert [(s.method, s.code) for s in found.stages] == [("Cholesky", -3), ("Cholesky", -3), ("LU", 0)]
    assert "not positive" in found.stages[0].reason


def test_hilbert_and_complex() -> None:
    checked(linalg.hilbert(N), assume_a="pos")
    generator = np.random.default_rng(1)
    half = generator.standard_normal((N, N)) + 1j * generator.standard_normal((N, N))
    a = half @ half.conj().T + N * np.eye(N)
    b = half[:, :2]
    for precision in ("auto", "bf16x2", "fp64"):
        found: Any = factorize(a, precision, assume_a="pos").solve(b)
        assert [s.method for s in found.stages] == ["Cholesky"]
        assert np.allclose(a @ found.x, b, rtol=1e-12, atol=1e-12)


def test_one_half_alone_is_refused() -> None:
    with pytest.raises(DataError, match=r"A is not symmetric: A\[\d, \d\] is .* solves it"):
        solve(np.triu(definite(1e2, n=4)), np.ones(4), assume_a="pos")
    with pytest.raises(ArgumentError, match="expected one of gen, pos"):
        solve(np.eye(2), np.ones(2), assume_a="positive definite")


@pytest.mark.parametrize("size", [2.0**40, 2.0**-40])
def test_what_float32_could_not_multiply_is_scaled_whatever_the_factor(size: float) -> None:
    a = torch.diag(torch.tensor([size, 1.0], dtype=torch.float64))
    for factor in ("fp32", "bf16", "fp16"):
        low, scale = to_shifted_single(a, factor)
        assert scale is not None
        assert low.diagonal().min() > 0.25
        assert low.diagonal().max() < 8
    ordinary = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))
    assert to_shifted_single(ordinary, "fp32")[1] is None


def componentwise(a: Any, x: Any, b: Any) -> float:
    """Return the largest |b - A x| / (|A| |x| + |b|) of all entries, in long double."""
    wide, long_x = a.astype(np.clongdouble), x.astype(np.clongdouble)
    share = np.abs(b - wide @ long_x) / (np.abs(wide) @ np.abs(long_x) + np.abs(b))
    return float(share.max())


@pytest.mark.parametrize("turn", [1.0, 1j])
@pytest.mark.parametrize("precision", ["auto", "fp64", "fp32"])
@pytest.mark.parametrize("size", [1.0, 1e15, 1e200])
def test_a_row_in_other_units_hides_no_lack_of_symmetry(size: float, precision: str, turn: complex) -> None:
    a = np.diag([size, 1.0, 1.0]) * (1 if turn == 1 else 1 + 0j)
    for there, back in ((0.5, -0.5), (0.5, 0.5 + 1e-9)):
        a[1, 2], a[2, 1] = there * turn, back * np.conj(turn)
        with pytest.raises(DataError, match="is not symmetric" if turn == 1 else "is not Hermitian"):
            factorize(a, precision, assume_a="pos")


def test_rounding_is_no_lack_of_symmetry_in_any_units() -> None:
    rng = np.random.default_rng(0)
    units = np.logspace(-20, 20, 30)
    rows = rng.standard_normal((90, 30)) * units
    a = (rows.T * rng.uniform(1, 2, 90)) @ rows
    a[3, 7] *= 1 + 2.0**-50
    assert (a != a.T).any()
    checked(a, assume_a="pos")
    checked(np.array([[0.0, 1.0, 2.0], [1 + 2.0**-50, 0.0, 1e-17], [2.0, 0.0, 1.0]]), assume_a="pos")


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
@pytest.mark.parametrize("size", [1.0, 1e30])
@pytest.mark.parametrize(
    ("above", "below", "right"),
    [(1 - 2.0**-42, 1 - 2.0**-42 - 2.0**-41, 1.0), (1 - 2.0**-41, 1 - 2.0**-46, 2.0)],
)
def test_halves_that_differ_by_rounding_are_both_solved_with(
    above: float, below: float, right: float, size: float, precision: str
) -> None:
    """The block is nearly singular, so that rounding decides half of the solution."""
    a, b = np.diag([size, 1.0, 1.0]), np.array([size, 1.0, right])
    a[1, 2], a[2, 1] = above, below
    found = factorize(a, precision, assume_a="pos").solve(b)
    assert found.converged
    assert componentwise(a, found.x, b) <= 4 * 2.0**-53
    assert np.allclose(found.x, np.linalg.solve(a, b), rtol=1e-2)
    if precision == "fp64" and below > above:
        assert [s.method for s in found.stages] == ["Cholesky", "LU"]


@pytest.mark.parametrize("pairs", [False, True])
def test_many_right_hand_sides_are_solved_with_both_halves(pairs: bool) -> None:
    rng = np.random.default_rng(0)
    half = rng.standard_normal((6, 6)) + (1j * rng.standard_normal((6, 6)) if pairs else 0)
    a, b = half @ half.conj().T + 6 * np.eye(6), rng.standard_normal((6, 6))
    a[4, 1] *= 1 + 2.0**-41
    factors = factorize(a, assume_a="pos")
    for x in (solve(a, b, assume_a="pos"), factors(b), factors.solve(b).x):
        assert componentwise(a, x, b) <= 4 * 2.0**-53
