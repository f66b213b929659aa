"""Matrices whose rows and columns differ in size: what equilibrates them stays apart, to the same bits."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from fewbits.solvers import factorize, solve
from fewbits.solvers.dense import lu, system
from fewbits.solvers.dense.plan import plan
from fewbits.solvers.dense.prepared_matrix import PreparedMatrix
from tests.solvers.systems import backward_error

N = 90


def uneven(reach: int, seed: int, *, definite: bool = False) -> Any:
    """Return a matrix whose rows and columns are multiplied by powers of two of up to ``reach`` in all."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((N, N))
    rows, columns = (rng.integers(-reach // 2 + 2, reach // 2 - 2, N) for _ in range(2))
    if definite:
        a, columns = a @ a.T + np.eye(N), rows
    return np.ldexp(a, rows[:, None] + columns)


def evidence(a: Any, b: Any, precision: str, assume_a: str) -> tuple[list[Any], Any]:
    """Return what has to be the same to the last bit, and sums that may be added in another order."""
    found = factorize(a, precision, assume_a=assume_a).solve(b)
    steps = [(stage.precision, stage.code, tuple(stage.history)) for stage in found.stages]
    errors = [found.residual, found.componentwise_error, found.forward_error, found.condition]
    return [found.x.tobytes(), steps, *errors], pytest.approx(found.backward_error, rel=1e-14)


@pytest.mark.parametrize("size", [-400, 0, 400])
@pytest.mark.parametrize(
    ("precision", "assume_a"),
    [("fp32", "gen"), ("bf16x2", "gen"), ("fp16", "gen"), ("fp64", "gen"), ("fp32", "pos"), ("fp64", "pos")],
)
def test_a_copy_that_is_equilibrated_gives_the_same_bits(
    precision: str, assume_a: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = uneven(90, size + 500, definite=assume_a == "pos")
    rng = np.random.default_rng(1)
    for sides in (rng.standard_normal(N), rng.standard_normal((N, 3)) * [1, 1e-9, 1e9]):
        b = np.ldexp(sides, size)
        with monkeypatch.context() as patched:
            apart = evidence(a, b, precision, assume_a)
            patched.setattr(system, "_REACH", -1)
            assert evidence(a, b, precision, assume_a) == apart


@pytest.mark.parametrize("reach", [30, 90, 180, 450])
def test_solutions_are_as_accurate_as_those_of_lapack(reach: int) -> None:
    for seed in range(4):
        a = uneven(reach, seed)
        b = np.random.default_rng(9).standard_normal(N)
        found = factorize(a, "fp32").solve(b)
        assert found.converged
        assert found.stages[0].code >= 0  # rounded as it is, 2^225 would be an infinity
        assert backward_error(a, found.x, b) <= max(
            10 * 2.0**-53, backward_error(a, np.linalg.solve(a, b), b)
        )


def test_gradients_come_from_the_scaled_system_of_the_transpose() -> None:
    a, b = (
        torch.from_numpy(uneven(60, 3)).requires_grad_(),
        torch.randn(N, 2, dtype=torch.float64, requires_grad=True),
    )
    solve(a, b, precision="fp32").square().sum().backward()
    theirs = a.detach().clone().requires_grad_(), b.detach().clone().requires_grad_()
    torch.linalg.solve(*theirs).square().sum().backward()
    for ours, wanted in zip((a, b), theirs, strict=True):
        assert ours.grad is not None
        assert wanted.grad is not None
        assert torch.allclose(ours.grad, wanted.grad, rtol=1e-9, atol=1e-12 * float(wanted.grad.abs().max()))


def test_no_copy_is_made_but_of_what_reaches_far() -> None:
    for reach, copied in ((90, False), (230, True)):
        a = torch.from_numpy(uneven(reach, 0))
        made = PreparedMatrix(a, plan("fp32", "gen", N).steps).system("LU")
        assert (made.a is not a) == copied
        assert (made.powers is None) == copied
        of_columns = made.matrix().abs().amax(0)
        assert bool(((of_columns >= 0.5) & (of_columns < 1)).all())  # and so no row has more


def test_gmres_multiplies_with_the_equilibrated_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    left, right = (np.linalg.qr(rng.standard_normal((N, N)))[0] for _ in range(2))
    a = (left * np.logspace(0, -8, N)) @ right
    a = np.ldexp(a, rng.integers(-40, 40, N)[:, None] + rng.integers(-40, 40, N))
    b = rng.standard_normal(N)
    found = factorize(a, "fp16").solve(b)
    assert [(s.precision, s.code > 0, s.inner > 0) for s in found.stages] == [("fp16", True, True)]
    monkeypatch.setattr(system, "_REACH", -1)
    assert factorize(a, "fp16").solve(b).x.tobytes() == found.x.tobytes()


def test_nothing_that_was_given_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lu, "OWN_FROM", 1)
    for a in (uneven(90, 4), np.random.default_rng(0).standard_normal((N, N))):
        before = a.copy()
        for precision in ("fp32", "fp64", "bf16x2"):
            factorize(a, precision).solve(np.ones(N))
            assert a.tobytes() == before.tobytes()


@pytest.mark.parametrize(("ratio", "equilibrated"), [(15.0, False), (17.0, True)])
def test_the_condition_is_that_of_a_matrix_whose_sizes_are_within_sixteen(
    ratio: float, equilibrated: bool
) -> None:
    a = np.array([[1.0, 0.0], [1.0, 1 / ratio]])
    judged = a * [1.0, 32.0] if equilibrated else a  # largest entries of [0.5, 1)
    assert factorize(a).solve(np.ones(2)).condition == pytest.approx(np.linalg.cond(judged, np.inf))


def test_the_forward_error_is_one_of_the_x_that_is_returned() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((8, 8)) * 10.0 ** rng.integers(-150, 150, 8)
    b = a @ np.ones(8)  # rounded in units of its largest terms: the smallest unknowns are lost
    rows, right = ([Fraction(v) for v in row] for row in (a.ravel().tolist(), b.tolist()))
    exact = solved([rows[i : i + 8] for i in range(0, 64, 8)], right)
    found = factorize(a).solve(b)
    error = max(abs(Fraction(x) - y) for x, y in zip(found.x.tolist(), exact, strict=True))
    true = float(error / Fraction(float(np.abs(found.x).max())))
    assert true / 2 <= found.forward_error <= 1000 * true


def solved(a: list[list[Fraction]], b: list[Fraction]) -> list[Fraction]:
    """Return the exact solution, by elimination."""
    rows = [[*row, right] for row, right in zip(a, b, strict=True)]
    for i in range(len(rows)):
        for j in range(len(rows)):
            if j != i:
                share = rows[j][i] / rows[i][i]
                rows[j] = [v - share * w for v, w in zip(rows[j], rows[i], strict=True)]
    return [row[-1] / row[i] for i, row in enumerate(rows)]
