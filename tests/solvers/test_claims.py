"""What Krylov solvers take, and that they are right about it: complex numbers, every scale and layout."""

import inspect
import time
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import LinearOperator, spilu

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers import (
    CompressedRows,
    Deflation,
    Stencil,
    bicgstab,
    cg,
    gcr,
    gmres,
    lattice,
    low_modes,
    lsqr,
    minres,
    multishift_cg,
)

SOLVERS: dict[str, Any] = {
    "cg": cg, "minres": minres, "bicgstab": bicgstab, "gmres": gmres, "gcr": gcr, "lsqr": lsqr,
}  # fmt: skip
N = 16


def system(*, hermitian: bool = True, seed: int = 0) -> tuple[Any, Any]:
    """Return a complex matrix of condition about 30, and a complex right-hand side."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)

    q, _ = np.linalg.qr(normal(N, N))
    values = np.linspace(1, 30, N) * (1 if hermitian else np.exp(1j * rng.uniform(-1, 1, N)))
    a = (q * values) @ q.conj().T
    return ((a + a.conj().T) / 2 if hermitian else a), normal(N)


def share(a: Any, x: Any, b: Any) -> float:
    """Return |b - A x| / |b| in long double."""
    r = b.astype(np.clongdouble) - np.asarray(a, np.clongdouble) @ x.astype(np.clongdouble)
    largest = np.abs(b).max()
    return float(np.linalg.norm((r / largest).astype(complex)) / np.linalg.norm(b / largest))


@pytest.mark.parametrize("precision", ["double", "single", "fp32/quda_half", "mxint8"])
@pytest.mark.parametrize("name", SOLVERS)
def test_complex_systems_are_solved_in_every_format(name: str, precision: str) -> None:
    a, b = system(hermitian=name in ("cg", "minres"))
    for matrix in (a, sp.csr_array(a)):
        found = SOLVERS[name](matrix, b, precision=precision, rtol=1e-8, maxiter=2000)
        assert found.x.dtype == np.complex128
        assert found.converged
        assert share(a, found.x, b) <= 1e-8
    # A complex A with a real b, and a real A with a complex b.
    for one, right in ((a, b.real.copy()), (a.real.copy(), b)) if precision == "single" else ():
        found = SOLVERS[name](one, right, precision=precision, rtol=1e-6, maxiter=1000)
        assert found.x.dtype == np.complex128
        assert found.converged or not np.allclose(one, a)
        assert not found.converged or share(one, found.x, right) <= 1e-6


@pytest.mark.parametrize("kind", ["stencil", "rows"])
def test_operators_with_kernels_of_their_own_take_complex_numbers(kind: str) -> None:
    rng = np.random.default_rng(0)
    if kind == "stencil":
        a: Any = Stencil.poisson(np.exp(rng.standard_normal((3, 4, 5))))
        dense = a.to_scipy().toarray()
    else:
        dense, _ = system()
        a = CompressedRows(sp.csr_array(dense))
    b = rng.standard_normal(len(dense)) + 1j * rng.standard_normal(len(dense))
    found = cg(a, b)
    assert found.converged
    assert found.path == ("scaled_fp16",)
    assert share(dense, found.x, b) <= 1e-10


def test_low_modes_deflation_and_shifts_are_complex_too() -> None:
    a, b = system()
    modes = low_modes(a, N, 3, tol=1e-3)
    assert modes.is_complex()
    for exponent in (0, -500):  # the modes of a matrix of any scale
        scaled = np.ldexp(a.view(float), exponent).view(complex)
        found = cg(scaled, b, deflation=Deflation(scaled, modes), precision="single")
        assert found.converged
        assert share(scaled, found.x, b) <= 1e-10
        step = Deflation(scaled, modes, None).correction(torch.from_numpy(b)).numpy()
        v = modes.numpy().astype(complex)
        exact = v @ np.linalg.solve(v.conj().T @ a @ v, v.conj().T @ b)
        assert np.allclose(np.ldexp(step.view(float), exponent).view(complex), exact, rtol=1e-9)
    assert cg(a.real.copy(), b.real.copy(), deflation=Deflation(a.real.copy(), modes)).converged
    for s, one in zip((0.0, 2.5), multishift_cg(a, b, [0.0, 2.5]), strict=True):
        assert one.converged
        assert share(a + s * np.eye(N), one.x, b) <= 1e-10
    with pytest.raises(ArgumentError, match="real numbers"):
        multishift_cg(a, b, [1j])


def test_dependent_modes_are_left_out_of_a_deflation_basis() -> None:
    values = np.r_[1e-4, 1e-3, np.linspace(1, 10, N - 2)]
    a, b = np.diag(values), np.ones(N)
    modes = np.eye(N)[:, [0, 1, 0, 0]] + np.eye(N)[:, [0, 1, 0, 1]]
    found = cg(a, b, deflation=Deflation(a, 1e-200 * modes), precision="single")
    assert found.converged
    assert (
        found.iterations
        <= cg(a, b, deflation=Deflation(a, np.eye(N)[:, :2]), precision="single").iterations + 5
    )
    with pytest.raises(ArgumentError, match="not positive definite"):
        Deflation(-a, modes)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("name", SOLVERS)
def test_powers_of_two_change_nothing_but_the_exponent(name: str, pairs: bool) -> None:
    a, b = system()
    a, b = (a, b) if pairs else (a.real.copy(), b.real.copy())
    here = SOLVERS[name](a, b, precision="single")
    for of_a, of_b in ((-600, 0), (600, 0), (0, 600), (500, 700), (-200, -900), (130, -130)):
        far_a, far_b = (np.ldexp(v.view(float), e).view(v.dtype) for v, e in ((a, of_a), (b, of_b)))
        there = SOLVERS[name](sp.csr_array(far_a) if of_a == 130 else far_a, far_b, precision="single")
        assert there.converged == here.converged
        if of_a != 130:  # sparse products add in another order
            # LAPACK's least squares look at the size of numbers; below its last bits a residual is noise.
            near, noise = (1e-3, 1e-14) if name == "gmres" else (0.0, 0.0)
            assert there.history == pytest.approx(here.history, rel=near, abs=noise)
            back = np.ldexp(there.x.view(float), of_a - of_b)
            assert np.allclose(back, here.x.view(float), rtol=near, atol=0)


def test_no_scale_overflows() -> None:
    found = cg(np.eye(2), np.full(2, 1e160))
    assert found.converged
    assert found.x == pytest.approx([1e160] * 2, rel=1e-10)
    line = sp.diags([-1.0, 2.0, -1.0], [-1, 0, 1], shape=(20, 20)).tocsr()
    for size in (1e-60, 1e40, 1e-300, 1e300):
        for solver in SOLVERS.values():
            found = solver(line * size, np.full(20, size))
            assert found.converged
            assert np.allclose(found.x, 0.5 * np.arange(1, 21) * np.arange(20, 0, -1), rtol=1e-6)
    with pytest.raises(DataError, match="beyond the largest float64"):
        cg(np.eye(2) * 1e-200, np.full(2, 1e200))
    with pytest.raises(DataError, match="1e300 apart"):
        gmres(np.diag([1e200, 1e-200]), np.ones(2))


@pytest.mark.parametrize("name", SOLVERS)
def test_a_zero_matrix_ends_at_once_and_a_singular_one_soon(name: str) -> None:
    found = SOLVERS[name](np.zeros((900, 900)), np.ones(900))
    assert (found.iterations, found.residual) == (0, 1.0)
    assert found.converged == (name == "lsqr")  # zeros are least squares
    assert not found.x.any()
    singular = sp.diags([-1.0, 2.0, -1.0], [-1, 0, 1], shape=(N, N)).toarray()
    singular[0, 0] = singular[-1, -1] = 1.0  # constants are its null space
    found = SOLVERS[name](singular, np.ones(N) + np.arange(N))
    if name != "lsqr":
        assert not found.converged
    assert found.residual <= 1
    right = singular @ np.random.default_rng(0).standard_normal(N)
    assert SOLVERS[name](singular, right, rtol=1e-6).residual <= (1e-6 if name != "bicgstab" else 1)


@pytest.mark.parametrize("precision", ["auto", "double", "single"])
@pytest.mark.parametrize(
    "values", [[1, 2, 3, 4, 0], [1, -2, 3, 0, 5, 0], [0, *np.linspace(1, 2, 20)], "line"]
)
def test_minres_leaves_of_what_has_no_solution_the_least(values: Any, precision: str) -> None:
    n = 20 if values == "line" else len(values)
    line = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    line[0, 0] = line[-1, -1] = 1.0  # constants are its null space
    a = line if values == "line" else np.diag(values)
    for b in (np.ones(n) + np.eye(n)[0], np.random.default_rng(0).standard_normal(n)):
        least = np.linalg.norm(b - a @ np.linalg.lstsq(a, b, rcond=None)[0])
        found = minres(a, b, precision=precision)
        assert not found.converged
        assert np.linalg.norm(b - a @ found.x) <= (1 + 1e-6) * least


@pytest.mark.parametrize("precision", ["auto", "double"])
@pytest.mark.parametrize("kind", ["real", "complex"])
def test_lsqr_keeps_the_x_that_solves_a_system(kind: str, precision: str) -> None:
    """Another one may have a smaller A^H r beside a larger r."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        half = rng.standard_normal((4, 4)) + (1j * rng.standard_normal((4, 4)) if kind == "complex" else 0)
        a, b = half @ half.conj().T + np.eye(4), np.eye(4)[0]
        found = lsqr(a, b, precision=precision)
        assert found.converged
        assert share(a, found.x, b) <= 1e-10


@pytest.mark.parametrize("name", SOLVERS)
def test_the_best_iterate_is_what_is_returned(name: str) -> None:
    rng = np.random.default_rng(3)
    a = rng.standard_normal((N, N))
    a = a @ a.T if name in ("cg", "minres") else a
    b = rng.standard_normal(N)
    residuals: list[float] = []
    found = SOLVERS[name](
        a, b, maxiter=9, precision="single", callback=lambda x: residuals.append(share(a, x, b))
    )
    assert len(residuals) == found.iterations
    assert found.residual == pytest.approx(share(a, found.x, b), rel=1e-3, abs=0)
    assert found.residual <= 1
    x0 = np.linalg.solve(a, b) * (1 + 1e-9 * rng.standard_normal(N))
    near = SOLVERS[name](a, b, x0=x0, precision="fp32/fp8_e5m2", maxiter=3, rtol=1e-15)
    assert near.residual <= share(a, x0, b) * (1 + 1e-6)


@pytest.mark.parametrize("name", ["cg", "minres", "gmres"])
def test_auto_gives_each_precision_its_own_budget_and_books_its_time(name: str) -> None:
    a = np.diag(np.geomspace(1e-9, 1, 40))
    b = a @ np.ones(40)
    began = time.perf_counter()
    found = SOLVERS[name](a, b, rtol=1e-12, maxiter=30)
    seconds = time.perf_counter() - began
    assert found.path == ("single", "double")
    single, double = found.stages
    assert len(single.history) <= 30
    assert len(double.history) > 0
    assert len(single.history) + len(double.history) == found.iterations
    assert min(single.refine_seconds, double.refine_seconds) > 0
    assert single.refine_seconds + double.refine_seconds <= seconds
    assert "stayed at" in single.reason
    alone = SOLVERS[name](a, b, rtol=1e-12, maxiter=30, precision="single")
    assert found.residual <= alone.residual


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("name", SOLVERS)
def test_every_layout_is_the_same_matrix(name: str) -> None:
    a, b = system(hermitian=True, seed=1)
    a = np.rint(3 * a) + 90 * np.eye(N)
    for numbers, right in ((a, b), (a.real.astype(np.int64), b.real)):
        expected = np.linalg.solve(numbers, right)
        layouts = ("csr", "csc", "coo", "bsr", "dia", "dok", "lil")
        given = [getattr(sp, f"{kind}_{of}")(numbers) for kind in layouts for of in ("array", "matrix")]
        times, adjoint = numbers.__matmul__, numbers.conj().T.__matmul__
        given += [LinearOperator((N, N), times, rmatvec=adjoint, dtype=numbers.dtype)]
        given += [numbers, numbers.tolist(), np.asfortranarray(numbers)]
        for one in given:
            assert np.allclose(SOLVERS[name](one, right.tolist()).x, expected, rtol=1e-7)
        dense = torch.from_numpy(numbers)
        tensors = [dense, dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc()]
        tensors += [dense.to_sparse_bsr((2, 2)), dense.to_sparse_bsc((2, 2))]
        for tensor in tensors:
            found = SOLVERS[name](tensor, torch.from_numpy(right))
            assert isinstance(found.x, torch.Tensor)
            assert np.allclose(found.x.numpy(), expected, rtol=1e-7)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, torch.bool])
def test_sparse_tensors_of_every_width_are_taken(dtype: torch.dtype) -> None:
    a = torch.tensor([[2.0, 1.0], [0.0, 3.0]]).to(dtype)
    expected = torch.linalg.solve(a.double(), torch.ones(2, dtype=torch.float64))
    for tensor in (a.to_sparse(), a.to_sparse_csr()):
        assert torch.allclose(gmres(tensor, torch.ones(2)).x, expected)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("name", [name for name in SOLVERS if name != "lsqr"])
def test_preconditioners_are_written_as_for_scipy(name: str, pairs: bool) -> None:
    scale = np.geomspace(1, 1e4, N)
    a, b = system(seed=2)
    a = scale[:, None] * (a if pairs else a.real) * scale
    b = b if pairs else b.real
    d = np.diag(a).real
    ilu = spilu(sp.csc_array(a), drop_tol=0).solve
    jacobi = LinearOperator((N, N), lambda v: v / d)
    for M in (sp.diags_array(1 / d), np.diag(1 / d), lambda v: v / d, jacobi, ilu):
        found = SOLVERS[name](a, b, M=M, precision="double", maxiter=200, rtol=1e-8)
        assert found.converged
    assert SOLVERS[name](a, b, M=ilu, rtol=1e-8, precision="double").iterations <= 8
    # The inverse of a real matrix, which takes real vectors only, serves complex ones.
    if not pairs:
        found = SOLVERS[name](a, b + 1j, M=ilu, rtol=1e-8)
        assert found.converged
        assert share(a, found.x, b + 1j) <= 1e-8
    with pytest.raises(ArgumentError, match=r"give its function, M\.solve"):
        SOLVERS[name](a, b, M=spilu(sp.csc_array(a)))
    with pytest.raises(ArgumentError, match="M has the shape"):
        SOLVERS[name](a, b, M=np.eye(N + 1))


@pytest.mark.parametrize("name", SOLVERS)
def test_several_right_hand_sides_first_solutions_and_callbacks(name: str) -> None:
    a, b = system()
    many = np.stack([b, 1e-150 * b, 0 * b, b.conj()], 1)
    found = SOLVERS[name](a, many)
    assert found.x.shape == (N, 4)
    assert found.converged
    assert len(found.columns) == 4
    assert found.iterations == sum(one.iterations for one in found.columns)
    for i, one in enumerate(found.columns):
        assert np.array_equal(one.x, found.x[:, i])
        assert not b.any() or i == 2 or share(a, one.x, many[:, i]) <= 1e-10
    seen: list[Any] = []
    again = SOLVERS[name](a, many, x0=found.x, callback=seen.append)
    assert again.iterations == len(seen) == 0
    one = SOLVERS[name](a, b, x0=0.5 * found.x[:, 0], callback=seen.append)
    assert len(seen) == one.iterations > 0
    assert np.allclose(seen[-1], one.x, atol=1e-7)
    assert SOLVERS[name](a, many[:, :0]).x.shape == (N, 0)
    with pytest.raises(ArgumentError, match="x0 has the shape"):
        SOLVERS[name](a, b, x0=np.ones(3))


def test_every_solver_stops_at_the_same_accuracy_unless_told() -> None:
    kinds = (*SOLVERS.values(), multishift_cg, lattice.Wilson.solve)
    assert {inspect.signature(f).parameters["rtol"].default for f in kinds} == {1e-10}


def test_minres_solves_what_is_indefinite_and_lsqr_what_is_not_square() -> None:
    rng = np.random.default_rng(0)
    a, b = system()
    shifted = a - 12.3 * np.eye(N)
    for precision in ("double", "single", "fp32/quda_half"):
        found = minres(shifted, b, precision=precision, maxiter=3000)
        assert found.converged
        assert np.allclose(found.x, np.linalg.solve(shifted, b), rtol=1e-6)
        for shape in ((30, 12), (12, 30)):
            c = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
            right = rng.standard_normal(shape[0])
            found = lsqr(sp.csr_array(c), right, precision=precision)
            assert found.converged
            if shape == (30, 12) or precision == "double":  # else it is the shortest but for roundoff
                assert np.allclose(found.x, np.linalg.lstsq(c, right, rcond=None)[0], rtol=1e-6, atol=1e-8)
    deficient = np.repeat(rng.standard_normal((20, 5)), 2, axis=1)
    found = lsqr(deficient, np.ones(20))
    assert found.converged
    assert found.optimality <= 1e-10
    assert np.allclose(found.x, np.linalg.lstsq(deficient, np.ones(20), rcond=None)[0], atol=1e-8)
    with pytest.raises(ArgumentError, match="rmatvec"):
        lsqr(LinearOperator((3, 2), lambda v: np.ones(3), dtype=float), np.ones(3))
    with pytest.raises(ArgumentError, match="give a LinearOperator"):
        lsqr(lambda v: v, np.ones(3))
    with pytest.raises(ArgumentError, match="not Hermitian"):
        minres(np.triu(a), b)


@pytest.mark.parametrize(
    ("a", "b", "options", "said"),
    [
        (np.eye(2), np.ma.masked_array([1.0, 2.0], [0, 1]), {}, "masked"),
        (np.eye(2), np.ones(2, np.longdouble), {}, "double at most"),
        (np.eye(2), ["a", "b"], {}, "expected real or complex numbers"),
        ([[1.0, 2.0], [3.0]], np.ones(2), {}, "different lengths"),
        (sp.csr_array(np.eye(2, dtype=np.longdouble)), np.ones(2), {}, "double at most"),
        (np.eye(2), torch.ones(2, requires_grad=True), {}, "b.detach"),
        (torch.eye(2).requires_grad_(), np.ones(2), {}, "A.detach"),
        (lambda v: v[:1], np.ones(2), {}, "a function gives the shape"),
        (np.eye(2), np.ones(2), {"maxiter": 0}, "maxiter=0"),
        (np.array([[1, 1j], [1j, 1]]), np.ones(2), {}, "not Hermitian"),
    ],
)
def test_what_cannot_be_done_is_refused(a: Any, b: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        cg(a, b, **options)


def test_least_squares_from_a_guess_is_not_done_where_b_is_orthogonal_to_the_columns() -> None:
    """Where A^H b is zero nothing is known of the size of A from b, and the guess is not the solution."""
    rng = np.random.default_rng(0)
    for m, n, size in ((2, 1, 5.0), (14, 14, 1e6), (27, 27, 1e6), (30, 8, 1e-6)):
        a = rng.standard_normal((m, n))
        a[0] = 0
        a[:, 0] = 0 if n > 1 else a[:, 0]
        b, guess = np.eye(m)[0], size * rng.standard_normal(n)
        found = lsqr(a, b, x0=guess)
        assert found.converged
        r = b - a @ found.x
        assert np.linalg.norm(a.T @ r) <= 1e-9 * np.linalg.norm(a, 2) * np.linalg.norm(r)
        assert np.linalg.norm(r) == pytest.approx(1, rel=1e-6)
        assert lsqr(a, b).converged


def dropping(dtype: type, *, kind: str) -> Any:
    """Return diag(1, 2, 4) in which imaginary parts get lost on the way."""
    values = np.array([1.0, 2.0, 4.0])

    def times(v: Any) -> Any:
        out = np.empty(3)
        out[:] = values * v
        return out

    return times if kind == "function" else LinearOperator((3, 3), times, rmatvec=times, dtype=dtype)


@pytest.mark.filterwarnings("error::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize(("kind", "dtype"), [("operator", float), ("operator", complex), ("function", float)])
@pytest.mark.parametrize("name", SOLVERS)
def test_what_drops_imaginary_parts_is_applied_to_real_numbers(name: str, kind: str, dtype: type) -> None:
    b = np.array([1 + 1j, 2 - 1j, 3j])
    a = dropping(dtype, kind="operator" if name == "lsqr" else kind)  # lsqr takes no function
    found = SOLVERS[name](a, b)
    assert found.converged
    assert np.allclose(found.x, b / [1, 2, 4])
    if name != "lsqr":
        found = SOLVERS[name](np.diag([1.0, 2.0, 4.0]), b, M=a)
        assert found.converged
        assert np.allclose(found.x, b / [1, 2, 4])


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("kind", ["transpose", "real part", "A itself", "A^H"])
def test_least_squares_are_not_judged_by_an_adjoint_that_is_none(kind: str) -> None:
    rng = np.random.default_rng(0)
    b = rng.standard_normal(6) + 1j * rng.standard_normal(6)
    a = rng.standard_normal((6, 6 if kind == "A itself" else 4)).astype(complex)
    a[:, -1] = a[:, 0]
    a += 1j * rng.standard_normal(a.shape) if kind in ("transpose", "A^H") else 0
    adjoints: dict[str, Any] = {
        "transpose": lambda u: a.T @ u,
        "real part": lambda u: (a.T @ u).real,
        "A itself": lambda u: a @ u,
        "A^H": lambda u: a.conj().T @ u,
    }
    given = LinearOperator(a.shape, lambda v: a @ v, rmatvec=adjoints[kind], dtype=complex)
    if kind == "A^H":
        assert np.allclose(lsqr(given, b).x, np.linalg.lstsq(a, b, rcond=None)[0])
        return
    with pytest.raises(ArgumentError, match="the adjoint of A is not that of A"):
        lsqr(given, b)


@pytest.mark.parametrize("given", [None, "no numbers", np.ones(3, np.longdouble)])
def test_functions_that_give_no_numbers_are_refused(given: Any) -> None:
    for solver in (cg, minres, bicgstab, gmres, gcr):
        with pytest.raises(ArgumentError, match=r"what a function gives is \S+; expected real or complex"):
            solver(lambda v: given, np.ones(3))
        with pytest.raises(ArgumentError, match=r"what a function gives is \S+; expected real or complex"):
            solver(np.eye(3), np.ones(3), M=lambda v: given)


def test_arguments_of_other_kinds_are_refused_in_words() -> None:
    with pytest.raises(ArgumentError, match=r"shifts=0\.5; expected finite real numbers"):
        multishift_cg(np.eye(3), np.ones(3), 0.5)
    with pytest.raises(ArgumentError, match=r"shape \(0, 1, 1\); expected"):
        Stencil.poisson(np.ones((0, 1, 1)))
    assert gmres(np.eye(3), np.ones(3), restart=10**6).x == pytest.approx(np.ones(3))
