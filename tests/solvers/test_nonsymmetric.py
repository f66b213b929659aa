"""BiCGstab, GMRES and GCR with narrow vectors, and many shifts at once."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import spilu, spsolve

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers import CompressedRows, Stencil, bicgstab, cg, gcr, gmres, krylov_precision, multishift_cg

SOLVERS = {"bicgstab": bicgstab, "gmres": gmres, "gcr": gcr}
PRECISIONS = ("double", "single", "fp32/quda_half", "quda_half", "auto")


def convection(side: int = 24, wind: float = 0.4) -> Any:
    """Return upwind convection and diffusion in two dimensions, plus a reaction."""
    line = sp.diags([-1.0 - wind, 2.0 + wind, -1.0], [-1, 0, 1], shape=(side, side))
    one = sp.identity(side)
    return (sp.kron(line, one) + sp.kron(one, line) + 0.05 * sp.identity(side**2)).tocsr()


def right(n: int) -> Any:
    return np.random.default_rng(0).standard_normal(n)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", SOLVERS)
def test_the_true_residual_is_reached(name: str, precision: str) -> None:
    a = convection()
    b = right(a.shape[0])
    seen: list[float] = []
    found = SOLVERS[name](a, b, precision=precision, watch=lambda _, __, r: seen.append(r))
    assert found.converged
    assert np.linalg.norm(b - a @ found.x) <= 1.000001e-10 * np.linalg.norm(b)
    assert np.allclose(found.x, spsolve(a.tocsc(), b), rtol=1e-6, atol=1e-8)
    assert seen == list(found.history)
    assert len(found.path) == 1
    double = SOLVERS[name](a, b, precision="double")
    assert found.iterations <= 2 * double.iterations + 10  # restarts cost some


@pytest.mark.parametrize("name", ["bicgstab", "gcr"])
def test_without_reliable_updates_claim_and_truth_part_ways(name: str) -> None:
    a = convection()
    found = SOLVERS[name](a, right(a.shape[0]), precision="fp32/quda_half", delta=None, maxiter=400)
    assert found.residual > 1e-7
    assert not found.converged


@pytest.mark.parametrize("name", SOLVERS)
def test_an_incomplete_factorization_cuts_iterations(name: str) -> None:
    a = convection()
    b = right(a.shape[0])
    factors = spilu(a.tocsc(), drop_tol=1e-2)

    plain = SOLVERS[name](a, b, precision="single")
    found = SOLVERS[name](a, b, precision="single", M=factors.solve)
    assert found.converged
    assert found.iterations < plain.iterations / 2


def test_jacobi_helps_conjugate_gradients_on_a_badly_scaled_matrix() -> None:
    rng = np.random.default_rng(1)
    scale = sp.diags(2.0 ** rng.integers(-6, 7, 400))
    line = sp.diags([-1.0, 2.1, -1.0], [-1, 0, 1], shape=(400, 400))
    a = (scale @ line @ scale).tocsr()
    b = right(400)
    diagonal = a.diagonal()
    found = cg(a, b, precision="fp32/quda_half", M=lambda v: v / diagonal)
    plain = cg(a, b, precision="double")
    assert found.converged
    assert found.iterations < plain.iterations


def test_the_basis_of_gmres_is_really_packed() -> None:
    a = convection(20)
    narrow = gmres(a, right(400), precision="fp32/mxfp6_e3m2", restart=80)
    double = gmres(a, right(400), precision="double", restart=80)
    assert narrow.converged
    assert narrow.reliable_updates > double.reliable_updates


def test_a_singular_matrix_is_told() -> None:
    a = np.diag([1.0, 2.0, 0.0])
    for solver in SOLVERS.values():
        found = solver(a, np.ones(3), precision="double", maxiter=50)
        assert not found.converged
        assert found.residual > 0.1


def test_zeros_give_zeros() -> None:
    for solver in SOLVERS.values():
        found = solver(convection(5), np.zeros(25))
        assert found.converged
        assert found.iterations == 0
        assert found.x.tolist() == [0.0] * 25


@pytest.mark.parametrize("name", SOLVERS)
def test_bad_input_is_refused(name: str) -> None:
    solver = SOLVERS[name]
    with pytest.raises(ArgumentError, match="square matrix"):
        solver(np.ones((3, 2)), np.ones(3))
    with pytest.raises(DataError, match="b holds NaN"):
        solver(np.eye(2), np.array([1.0, np.nan]))
    with pytest.raises(ArgumentError, match="rtol=0"):
        solver(np.eye(2), np.ones(2), rtol=0)
    with pytest.raises(ArgumentError, match="float99"):
        solver(np.eye(2), np.ones(2), precision="float99")
    if name != "bicgstab":
        with pytest.raises(ArgumentError, match="restart=0"):
            solver(np.eye(2), np.ones(2), restart=0)
        with pytest.raises(ArgumentError, match="restart=None"):
            solver(np.eye(2), np.ones(2), restart=None)
        with pytest.raises(ArgumentError, match="restart=True; expected at least 1, a whole number"):
            solver(np.eye(2), np.ones(2), restart=True)


@pytest.mark.parametrize("text", ["fp32/", "/fp32", "/", "fp32/fp32/fp32", "fp32/ "])
def test_a_pair_of_formats_has_two(text: str) -> None:
    with pytest.raises(ArgumentError, match="there is no precision"):
        krylov_precision(text)


@pytest.mark.parametrize("text", [" fp32", "fp32 ", "fp32 / fp32", "single / fp32"])
def test_spaces_around_formats_mean_nothing(text: str) -> None:
    found = krylov_precision(text)
    assert (found.matrix, found.vectors) == ("fp32", "fp32")


SHIFTS = [0.01, 0.1, 0.0, 1.0, 10.0]


@pytest.mark.parametrize("precision", ["double", "single", "fp32/quda_half"])
def test_many_shifts_cost_little_more_than_one(precision: str) -> None:
    line = sp.diags([-1.0, 2.0, -1.0], [-1, 0, 1], shape=(30, 30))
    one = sp.identity(30)
    a = (sp.kron(line, one) + sp.kron(one, line) + 0.02 * sp.identity(900)).tocsr()
    b = right(900)
    found = multishift_cg(a, b, SHIFTS, precision=precision)
    for s, result in zip(SHIFTS, found, strict=True):
        assert result.converged
        residual = b - a @ result.x - s * result.x
        assert np.linalg.norm(residual) <= 1.000001e-10 * np.linalg.norm(b)
    shared = min(r.iterations for r in found)
    alone = sum(cg(a + s * sp.identity(900), b, precision=precision).iterations for s in SHIFTS)
    together = shared + sum(r.iterations - shared for r in found)
    if precision == "double":
        assert together <= 0.6 * alone


def test_shifts_of_a_stencil_are_stencils() -> None:
    a = Stencil.poisson(np.ones((6, 7, 8)))
    b = right(a.n)
    for s, result in zip([0.0, 0.5], multishift_cg(a, b, [0.0, 0.5], precision="scaled_fp16"), strict=True):
        assert result.converged
        assert np.allclose(a.shifted(s).exact(torch.from_numpy(result.x)).numpy(), b, atol=1e-7)


@pytest.mark.parametrize(("of_a", "of_b"), [(1e-310, 1e-310), (1e300, 1e300), (1.0, 1e-300), (1e-300, 1.0)])
def test_shifts_of_matrices_of_any_size_are_solved(of_a: float, of_b: float) -> None:
    a, b = np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0])
    for s, found in zip([0.0, 1.0], multishift_cg(of_a * a, of_b * b, [0.0, of_a]), strict=True):
        assert found.converged
        assert found.x / (of_b / of_a) == pytest.approx(np.linalg.solve(a + s * np.eye(2), b), rel=1e-9)


@pytest.mark.parametrize("kind", ["dense", "sparse", "complex b"])
def test_the_residual_of_a_shift_that_cancels_is_the_true_one(kind: str) -> None:
    rng = np.random.default_rng(0)
    claimed = 0
    for _ in range(40):
        shift = 10.0 ** rng.uniform(4, 8)
        values = rng.uniform(1, 6, 3) - shift
        b = rng.uniform(1, 2, 3) + (1j if kind == "complex b" else 0)
        a: Any = sp.diags([values], [0]).tocsr() if kind == "sparse" else np.diag(values)
        (found,) = multishift_cg(a, b, [shift])
        parts = [
            Fraction(float(of_b)) - (Fraction(value) + Fraction(shift)) * Fraction(float(of_x))
            for one, of_x1, value in zip(b, found.x, values.tolist(), strict=True)
            for of_b, of_x in ((one.real, of_x1.real), (one.imag, of_x1.imag))
        ]
        true = float(sum(part * part for part in parts)) ** 0.5 / np.linalg.norm(b)
        assert found.residual == pytest.approx(true, rel=1e-2, abs=0)
        assert found.converged == (true <= 1e-10)
        claimed += found.converged
    assert claimed > 20


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("shift", [1e9, 1e10, 1e13])
def test_a_symmetric_matrix_is_so_whatever_the_shift(n: int, shift: float) -> None:
    a, b = np.diag(np.arange(1.0, n + 1)) - shift * np.eye(n), np.ones(n)
    for matrix, right_side in ((a, b), (a, b + 1j), (lambda v: a @ v, b)):
        (found,) = multishift_cg(matrix, right_side, [shift], rtol=0.1)
        assert found.converged
    if n > 1:
        with pytest.raises(ArgumentError, match="not symmetric"):
            multishift_cg(a + shift * np.eye(n, k=1), b, [shift])


@pytest.mark.parametrize(("of_a", "shift"), [(1e-170, 1.0), (1.0, 1e170), (1.0, 1e300)])
def test_beside_a_shift_that_dwarfs_it_a_matrix_is_as_symmetric_as_before(of_a: float, shift: float) -> None:
    a, b = of_a * np.array([[2.0, 0.3, 0.0], [0.3, 1.0, 0.1], [0.0, 0.1, 3.0]]), np.array([1.0, 2.0, -1.0])
    for matrix, right_side in ((a, b), (sp.csr_array(a), b), (a, b + 1j), (lambda v: a @ v, b)):
        (found,) = multishift_cg(matrix, right_side, [shift])
        assert found.converged
        assert shift * found.x == pytest.approx(right_side, rel=1e-9)
    for matrix in (np.triu(a), lambda v: np.triu(a) @ v):
        with pytest.raises(ArgumentError, match="not symmetric"):
            multishift_cg(matrix, b, [shift])


def test_a_shift_beyond_the_range_of_its_matrix_is_named() -> None:
    with pytest.raises(DataError, match=r"below the shift 1e\+308, .* leave that shift out"):
        multishift_cg(np.array([[1.0, 0.3], [0.3, 2.0]]), np.ones(2), [0.0, 1e308])


def test_shifts_whose_solutions_leave_the_range_are_not_said_to_be_solved() -> None:
    with pytest.raises(DataError, match="beyond the largest float64"):
        multishift_cg(1e-310 * np.eye(2), np.ones(2), [0.0])
    (found,) = multishift_cg(1e300 * np.eye(2), np.full(2, 1e-300), [0.0])
    assert not found.converged  # 1e-600 is zero


@pytest.mark.parametrize("seed", [9, 12, 13])
def test_an_iterate_that_grows_along_a_null_vector_is_no_convergence_and_no_error(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = 2 + seed % 4
    a = sp.csr_array(np.diag(np.r_[rng.random(n - 1) + 5, 0]))
    found = bicgstab(CompressedRows(a), rng.standard_normal(n), rtol=1e-8, maxiter=600, precision="double")
    assert not found.converged
    assert np.isfinite(found.x).all()


@pytest.mark.parametrize("precision", ["double", "single", "half", "fp32/bf16"])
@pytest.mark.parametrize("n", [1, 3, 4, 19, 21])
def test_gcr_forgets_directions_that_leave_only_rounding(n: int, precision: str) -> None:
    rng = np.random.default_rng(n)
    turned = np.linalg.qr(rng.standard_normal((n, n)))[0]
    a, b = turned * np.geomspace(1, 23, n) @ turned.T, rng.standard_normal(n)
    found = gcr(a, b, precision=precision)
    assert found.converged
    assert np.linalg.norm(b - a @ found.x) <= 1.000001e-10 * np.linalg.norm(b)
    assert np.allclose(found.x, np.linalg.solve(a, b), rtol=1e-7, atol=1e-7)


def test_gcr_forgets_them_in_an_invariant_subspace_too() -> None:
    b = np.random.default_rng(0).standard_normal(300)
    a = sp.diags([np.resize([1.0, 2.0, 7.0], 300)], [0]).tocsr()
    assert gcr(a, b, precision="single").iterations <= 3 * 4


@pytest.mark.parametrize("precision", ["double", "single", "auto", "fp32/quda_half"])
@pytest.mark.parametrize("kind", ["turns", "random", "shifts"])
def test_gcr_ends_where_no_step_gains_anything_and_gmres_goes_on(kind: str, precision: str) -> None:
    """Residuals orthogonal to their images: of skew-symmetric matrices, and of one that permutes."""
    n = 10
    turns = np.kron(np.eye(n // 2), [[0.0, 1.0], [-1.0, 0.0]])
    half = np.random.default_rng(0).integers(-3, 4, (n, n))
    a = {"turns": turns, "random": half - half.T + 0.0, "shifts": np.roll(np.eye(n), 1, 0)}[kind]
    b = np.eye(n)[0]
    found = gcr(a, b, precision=precision, maxiter=1000)
    assert not found.converged
    assert found.iterations <= 4 * len(found.stages)
    assert found.residual == 1.0
    assert not bicgstab(a, b, precision=precision, maxiter=1000).converged
    assert gmres(a, b, precision=precision).converged


def test_bad_shifts_are_refused() -> None:
    with pytest.raises(ArgumentError, match="at least one"):
        multishift_cg(np.eye(2), np.ones(2), [])
    with pytest.raises(ArgumentError, match="finite"):
        multishift_cg(np.eye(2), np.ones(2), [np.inf])
    wrong: list[Any] = ["1", 1j, torch.tensor(1j), 10**400, None]
    for shift in wrong:
        with pytest.raises(ArgumentError, match=r"shifts=\[.*\]; expected finite real numbers"):
            multishift_cg(np.eye(2), np.ones(2), [shift])
    with pytest.raises(DataError, match="not positive definite"):
        multishift_cg(np.eye(2), np.ones(2), [-2.0])
