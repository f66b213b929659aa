"""One rule for what solvers return: `solve` an array, every other one a Solution that stands for one."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits import solvers
from fewbits.errors import ArgumentError
from fewbits.solvers import Solution, factorize, lattice
from fewbits.solvers.solution import REASONS

A = np.diag(np.arange(1.0, 13.0)) + 0.1 * np.ones((12, 12))
X = np.arange(12.0) - 3
KRYLOV = ("cg", "minres", "bicgstab", "gmres", "gcr", "lsqr")
SOLVERS: dict[str, Callable[..., Any]] = {name: getattr(solvers, name) for name in KRYLOV}
SOLVERS |= {
    "lstsq": solvers.lstsq,
    "factorize": lambda a, b: factorize(a).solve(b),
    "multishift_cg": lambda a, b: solvers.multishift_cg(a, b, [0.0])[0],
}
FAMILIES: dict[str, Callable[[Any], Any]] = {"NumPy": np.asarray, "PyTorch": torch.as_tensor}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_returns_a_solution_that_stands_for_its_x(name: str, family: str) -> None:
    of_family = FAMILIES[family]
    b = of_family(A @ X)
    solution = SOLVERS[name](of_family(A), b)
    assert type(solution) is Solution
    assert solution.converged
    assert type(solution.x) is type(b)
    assert solution.x.shape == b.shape
    assert np.allclose(solution, X, atol=1e-8)
    # No entry of the residual is larger than its norm, which is what the solvers promise.
    assert np.allclose(of_family(A) @ solution, b, rtol=0, atol=1e-10 * float(np.linalg.norm(A @ X)))
    assert torch.equal(torch.asarray(solution), torch.as_tensor(solution.x))
    assert torch.equal(torch.from_dlpack(solution), torch.as_tensor(solution.x))
    assert torch.stack([torch.as_tensor(b), solution]).shape == (2, 12)
    true = float(np.linalg.norm(A @ X - A @ np.asarray(solution)) / np.linalg.norm(A @ X))
    assert solution.residual <= 1e-10
    assert abs(solution.residual - true) <= 1e-15
    assert solution.path == tuple(dict.fromkeys(stage.precision for stage in solution.stages))
    with pytest.raises(TypeError, match="unpack"):
        _, _ = solution


def test_a_solution_refuses_what_would_lose_its_gradient_or_copy_it_against_the_word() -> None:
    a, b = torch.from_numpy(A).requires_grad_(), torch.from_numpy(A @ X)
    solution = factorize(a).solve(b)
    for read in (torch.asarray, torch.from_dlpack):
        with pytest.raises(ArgumentError, match=r"take solution\.x"):
            read(solution)
    (b @ solution).backward()
    assert torch.isfinite(a.grad).all()
    assert np.allclose(np.asarray(solution), X)  # no array has a gradient
    plain = factorize(A).solve(A @ X)
    if int(np.__version__.split(".")[0]) >= 2:  # before, NumPy did not ask for it
        assert np.shares_memory(np.array(plain, copy=False), plain.x)
        with pytest.raises(ValueError, match="float32 takes a copy"):
            np.array(plain, np.float32, copy=False)
    assert np.array(plain, np.float32).dtype == np.float32


@pytest.mark.parametrize("family", FAMILIES)
def test_solve_and_a_factorization_that_is_called_return_x_itself(family: str) -> None:
    of_family = FAMILIES[family]
    for x in (fb.solve(of_family(A), of_family(A @ X)), factorize(of_family(A))(of_family(A @ X))):
        assert type(x) is type(of_family(X))
        assert np.allclose(x, X)


@pytest.mark.parametrize("name", [name for name in SOLVERS if name != "multishift_cg"])
def test_several_right_hand_sides_have_a_solution_each(name: str) -> None:
    b = np.stack([A @ X, np.zeros(12), 1e3 * np.ones(12)], 1)
    together = SOLVERS[name](A, b)
    assert together.x.shape == (12, 3)
    assert len(together.columns) == 3
    for x, column, side in zip(together.x.T, together.columns, b.T, strict=True):
        assert np.array_equal(column.x, x)
        assert column.columns == ()
        assert column.residual <= together.residual
        assert np.allclose(A @ column, side, atol=1e-6)
    assert together.residual == max(column.residual for column in together.columns)
    assert SOLVERS[name](A, b[:, 0]).columns == ()


def test_a_complex_right_hand_side_of_a_real_matrix_counts_as_one_column() -> None:
    b = np.stack([A @ X, np.ones(12)], 1) * (1 + 2j)
    solution = factorize(A).solve(b)
    assert len(solution.columns) == 2
    r = np.linalg.norm(b - A @ solution.x, axis=0) / np.linalg.norm(b, axis=0)
    for column, true in zip(solution.columns, r, strict=True):
        assert abs(column.residual - true) < 1e-15


def test_the_residual_of_a_dense_system_is_in_the_units_of_a() -> None:
    rows, columns = 10.0 ** np.arange(-150, 150, 25), 10.0 ** np.arange(60, -60, -10)
    a = rows[:, None] * A * columns
    b = a @ (X / columns)
    solution = factorize(a).solve(b)
    assert solution.residual <= 1e-15
    far = factorize(1e200 * A).solve(1e200 * (A @ X))
    assert far.residual <= 1e-15


def exact_residual(a: Any, x: Any, b: Any) -> float:
    """Return |b - A x| / |b| of a real A, squares summed as fractions."""
    r = size = Fraction(0)
    for of_x, of_b in ((x.real, b.real), (x.imag, b.imag)):
        for row, right in zip(a.tolist(), map(Fraction, of_b.tolist()), strict=True):
            product = sum(Fraction(v) * Fraction(y) for v, y in zip(row, of_x.tolist(), strict=True))
            r += (right - product) ** 2
            size += right**2
    ratio = r / size
    shift = (ratio.numerator.bit_length() - ratio.denominator.bit_length()) // 2
    return math.ldexp(math.sqrt(ratio / Fraction(4) ** shift), shift)


@pytest.mark.parametrize("far", [1e-8, 1e-150])
def test_the_residual_of_a_complex_right_hand_side_weighs_its_parts_as_they_are(far: float) -> None:
    scale = np.array([[1e30], [1.0]])
    a = scale * np.array([[1.0, 2.0], [1.0, 2.0 + 1e-9]])
    b = np.array([[1e30], [1.0]]) + 1j * far * scale * [[0.3], [-0.7]]
    for given, right in ((a, b), (a / scale, 1e-140 * b / scale)):  # scaled, and with small sides alone
        found = factorize(given).solve(right)
        assert found.residual == pytest.approx(exact_residual(given, found.x[:, 0], right[:, 0]), rel=1e-6)


def test_a_residual_far_above_b_is_a_number() -> None:
    a = np.array([[1e200, 2e200], [3.0, 4.0]])
    b = np.array([0.0, 1.0])  # the rounding of x is 1e-16 of one, and 1e184 of b
    found = factorize(a).solve(b)
    assert 1e180 < found.residual < 1e186
    assert found.residual == pytest.approx(exact_residual(a, found.x, b), rel=1e-12)


@pytest.mark.parametrize("name", KRYLOV)
def test_iterations_stop_at_the_larger_one_of_rtol_and_atol(name: str) -> None:
    b = 1e150 * (A @ X)
    size = np.linalg.norm(b)
    loose = SOLVERS[name](A, b, rtol=1e-12, atol=1e-3 * size)
    tight = SOLVERS[name](A, b, rtol=1e-12, atol=1e-20 * size)
    assert loose.converged
    assert tight.converged
    assert 1e-12 < loose.residual <= 1e-3
    assert tight.residual <= 1e-12
    assert loose.iterations < tight.iterations
    alone = SOLVERS[name](A, b, rtol=0, atol=1e-6 * size)
    assert alone.converged
    assert alone.residual <= 1e-6
    assert SOLVERS[name](A, b, atol=2 * size).iterations == 0


def test_a_lattice_starts_from_x0_and_stops_at_atol() -> None:
    wilson = lattice.Wilson(lattice.smooth_links((2, 2, 2, 4), seed=1), mass=0.3)
    b = np.random.default_rng(0).standard_normal((2, 2, 2, 4, 4, 3)) + 0j
    seen: list[Any] = []
    whole = wilson.solve(b, callback=seen.append)
    assert len(seen) == whole.iterations
    assert np.allclose(seen[-1], whole.x, atol=1e-4)
    assert wilson.solve(b, whole.x).iterations == 0
    again = wilson.solve(b, 1.001 * whole.x)
    assert again.converged
    assert again.iterations < whole.iterations
    size = float(np.linalg.norm(b))
    loose = wilson.solve(b, atol=1e-3 * size)
    assert loose.converged
    assert loose.residual > 1e-10
    assert np.linalg.norm(b - wilson.apply(loose.x)) <= 1e-3 * size


@pytest.mark.parametrize("name", KRYLOV)
def test_x0_is_the_third_argument_as_in_scipy(name: str) -> None:
    solution = SOLVERS[name](A, A @ X, X)
    assert solution.iterations == 0
    assert np.array_equal(solution.x, X)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rtol": -1e-3}, "rtol=-0.001; expected a relative residual"),
        ({"rtol": 1.0}, "rtol=1.0; expected a relative residual"),
        ({"atol": -1.0}, "atol=-1.0; expected a residual of at least 0"),
        ({"atol": math.inf}, "atol=inf; expected a residual of at least 0"),
        ({"rtol": 0}, "rtol=0 and atol=0"),
        ({"maxiter": 0}, "maxiter=0; expected at least 1"),
    ],
)
def test_a_bound_that_stops_nothing_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        solvers.cg(A, A @ X, **options)


@pytest.mark.parametrize("b", [np.zeros(3), np.zeros((3, 0))], ids=["zero", "none"])
@pytest.mark.parametrize("name", KRYLOV)
def test_a_precision_that_is_none_is_refused_also_where_nothing_is_to_solve(name: str, b: Any) -> None:
    with pytest.raises(ArgumentError, match="there is no precision 'fp33'"):
        SOLVERS[name](np.eye(3), b, precision="fp33")


@pytest.mark.parametrize(
    ("solver", "rows", "columns", "sides"),
    [
        (fb.solve, 3, 3, (3, 0)),
        (fb.solve, 0, 0, (0,)),
        (solvers.lstsq, 3, 0, (3,)),
        (solvers.lstsq, 2, 3, (2,)),  # more columns than rows are for LAPACK alone
    ],
)
def test_dense_solvers_refuse_it_too(
    solver: Callable[..., Any], rows: int, columns: int, sides: tuple[int, ...]
) -> None:
    with pytest.raises(ArgumentError, match="there is no precision 'fp33'"):
        solver(np.ones((rows, columns)), np.zeros(sides), precision="fp33")


def test_an_assumption_that_is_none_is_refused_for_batches_too() -> None:
    for front in ((), (0,), (2,)):
        with pytest.raises(ArgumentError, match="assume_a='sym'; expected one of gen, pos"):
            fb.solve(np.zeros((*front, 2, 2)), np.zeros((*front, 2, 0)), assume_a="sym")


def test_every_solver_tells_the_precision_to_those_who_watch() -> None:
    for name in KRYLOV:
        seen: list[tuple[str, int, float]] = []
        solution = SOLVERS[name](A, A @ X, precision="single", watch=lambda *told, to=seen: to.append(told))
        assert [(stage, i) for stage, i, _ in seen] == [("single", i + 1) for i in range(solution.iterations)]
        assert tuple(r for _, _, r in seen) == solution.history


@pytest.mark.parametrize(
    "solver", [fb.solve, lambda a, b: factorize(a).solve(b), lambda a, b: factorize(a)(b)]
)
def test_a_warning_points_at_the_call(solver: Callable[..., Any]) -> None:
    a = np.arange(1.0, 10.0).reshape(3, 3)
    with pytest.warns(RuntimeWarning, match="singular to working precision") as caught:
        solver(a, a @ np.ones(3))
    assert [warning.filename for warning in caught] == [__file__]


def test_reasons_have_the_numbers_of_cusolver() -> None:
    """cusolverDnIRSXgesv documents -1, -2, -3, -5 and -maxiter, of which 50 is the default."""
    assert set(REASONS) == {-1, -2, -3, -5, -50}
    assert REASONS[-1] == "not worth trying"
