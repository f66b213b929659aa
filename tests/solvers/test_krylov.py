"""Conjugate gradients with narrow vectors: the true residual decides, and reliable updates keep it."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import cg as scipy_cg

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers import bicgstab, cg, gcr, gmres, lsqr, minres, multishift_cg

SIDE = 96


def laplacian(shift: float, side: int = SIDE) -> Any:
    """Return the shifted two-dimensional Laplacian."""
    line = sp.diags([-1.0, 2.0, -1.0], [-1, 0, 1], shape=(side, side))
    one = sp.identity(side)
    return (sp.kron(line, one) + sp.kron(one, line) + shift * sp.identity(side**2)).tocsr()


def right(n: int = SIDE**2) -> Any:
    return np.random.default_rng(0).standard_normal(n)


# Iterations of double precision, and of 16-bit integers with a norm for each 24 values.
@pytest.mark.parametrize(("shift", "double", "half"), [(1e-1, 100, 100), (1e-2, 246, 250), (1e-3, 317, 380)])
def test_sixteen_bits_reach_what_double_reaches(shift: float, double: int, half: int) -> None:
    a, b = laplacian(shift), right()
    assert cg(a, b, precision="double", delta=None).iterations == pytest.approx(double, abs=2)
    for precision in ("single", "fp32/quda_half"):
        found = cg(a, b, precision=precision)
        assert found.converged
        assert np.linalg.norm(b - a @ found.x) <= 1.0001e-10 * np.linalg.norm(b)
        assert found.iterations <= 1.05 * half
        assert found.reliable_updates == 10
    assert found.iterations <= 1.3 * double


def test_without_reliable_updates_claim_and_truth_part_ways() -> None:
    found = cg(laplacian(1e-2), right(), precision="fp32/quda_half", delta=None)
    assert found.claimed <= 1e-10
    assert found.residual > 1e-6
    assert not found.converged


def test_half_precision_without_a_norm_stalls() -> None:
    found = cg(laplacian(1e-2), right(), precision="fp32/fp16", maxiter=1000)
    assert not found.converged
    assert found.residual > 1e-8


@pytest.mark.parametrize("trigger", ["drop", "deviation"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_residual_that_swings_on_its_way_down_is_no_stall(seed: int, trigger: str) -> None:
    rng = np.random.default_rng(seed)
    k = np.exp(3 * rng.standard_normal(121))  # conductances over eight orders of magnitude
    a = sp.diags([-k[1:-1], k[:-1] + k[1:], -k[1:-1]], [-1, 0, 1]).tocsr()
    b = rng.standard_normal(120)
    expected, failed = scipy_cg(a, b, rtol=1e-6, maxiter=5000)
    assert failed == 0
    found = cg(a, b, rtol=1e-6, maxiter=5000, trigger=trigger, precision="double")
    assert found.converged
    assert np.linalg.norm(b - a @ found.x) <= 1.0001e-6 * np.linalg.norm(b)
    assert np.allclose(found.x, expected, atol=1e-2 * np.abs(expected).max())


def test_it_solves_what_scipy_solves() -> None:
    a, b = laplacian(1e-2, 30), right(900)
    expected, failed = scipy_cg(a, b, rtol=1e-12)
    assert failed == 0
    found = cg(a, b, rtol=1e-12)
    assert np.allclose(found.x, expected, atol=1e-9)
    assert len(found.history) == found.iterations
    assert found.history[-1] < 1e-10


def test_every_kind_of_matrix_gives_the_same() -> None:
    a, b = laplacian(1e-1, 20), right(400)
    dense = torch.from_numpy(a.toarray())
    expected = cg(a, b).x
    for kind in (a.toarray(), lambda v: a @ v):
        assert np.allclose(cg(kind, b).x, expected, atol=1e-9)
    for tensor in (dense, dense.to_sparse(), torch.complex(dense, -dense).conj().imag):  # read with a sign
        assert torch.allclose(cg(tensor, torch.from_numpy(b)).x, torch.from_numpy(expected), atol=1e-9)


@pytest.mark.parametrize("layout", ["coo", "csr", "bsr", "torch"])
@pytest.mark.parametrize(("dtype", "values"), [("int8", [100, 100]), ("float32", [2**24, 1])])
def test_values_of_a_sparse_matrix_at_one_place_are_added_in_double_precision(
    dtype: str, values: list[int], layout: str
) -> None:
    given, b = np.array(values, dtype), np.array([float(sum(values))])
    places = np.zeros((2, 2), np.int64)
    if layout == "torch":
        a = torch.sparse_coo_tensor(places, given, (1, 1), check_invariants=True)
        b = torch.from_numpy(b)
    elif layout == "coo":
        a = sp.coo_array((given, tuple(places)), shape=(1, 1))
    else:
        a = sp.csr_array((given, places[0], [0, 2]), shape=(1, 1))
        a = a if layout == "csr" else sp.bsr_array((given[:, None, None], a.indices, a.indptr), shape=(1, 1))
    assert float(cg(a, b).x[0]) == pytest.approx(1, rel=1e-15)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_hybrid_and_narrow_tensors_are_matrices_and_those_of_other_dimensions_are_refused() -> None:
    dense, b = torch.tensor([[4.0, 1.0], [1.0, 3.0]]), torch.tensor([1.0, 2.0])
    expected = torch.linalg.solve(dense.double(), b.double())
    assert torch.allclose(cg(dense.to_sparse(1), b).x, expected)  # sparse rows of two numbers each
    narrow = torch.sparse_coo_tensor(
        torch.tensor([[0, 0, 1, 1], [0, 1, 0, 1]]),
        dense.flatten().to(torch.float8_e4m3fn),
        (2, 2),
        check_invariants=True,
    )
    assert torch.allclose(cg(narrow, b).x, expected)
    for shape in ((), (2,), (2, 2, 2)):
        with pytest.raises(ArgumentError, match=rf"A has the shape \({', '.join(map(str, shape))}"):
            cg(torch.ones(shape).to_sparse(), b)
    with pytest.raises(ArgumentError, match=r"A has the shape \(3, 2"):
        cg(torch.ones(3, 2, 2).to_sparse_csr(), b)


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_a_curvature_that_is_rounding_is_not_refused_whatever_the_size_of_a(size: float) -> None:
    a = np.diag(size * np.r_[np.tile([1.0, 3.0], 9), -1e-14])
    assert not cg(a, np.r_[np.ones(18), 1e-7], maxiter=60).converged
    with pytest.raises(DataError, match="not positive definite"):
        cg(np.diag(size * np.r_[np.tile([1.0, 3.0], 9), -1e-3]), np.r_[np.ones(18), 1e-7], maxiter=60)


@pytest.mark.parametrize("precision", ["double", "auto", "half"])
@pytest.mark.parametrize("of_m", [[-1.0, -1.0, -1.0], [1.0, 1.0, -3.0], [0.0, 0.0, 0.0]], ids=str)
def test_a_preconditioner_that_is_not_positive_definite_is_named(of_m: list[float], precision: str) -> None:
    a, b = np.diag([1.0, 2.0, 4.0]), np.ones(3)
    with pytest.raises(DataError, match=r"M is not positive definite: r\^H M r = (-[\d.]+|-?0) for"):
        cg(a, b, M=np.diag(of_m), precision=precision)
    assert cg(a, b, M=np.diag([1.0, 1.0, 1e-9]), precision=precision).converged


def test_zeros_give_zeros() -> None:
    found = cg(laplacian(1.0, 5), np.zeros(25))
    assert found.converged
    assert found.x.tolist() == [0.0] * 25


@pytest.mark.parametrize("solver", [cg, minres, bicgstab, gmres, gcr, lsqr])
@pytest.mark.parametrize(("size", "atol"), [(1e-300, 1e10), (1e-305, 1e-5), (5e-324, 1.0), (1e-300, 1e308)])
def test_a_right_hand_side_below_the_absolute_tolerance_has_the_solution_zero(
    solver: Any, size: float, atol: float
) -> None:
    found = solver(np.diag([1.0, 2.0]), np.full(2, size), atol=atol)
    assert found.converged
    assert found.x.tolist() == [0.0, 0.0]
    assert found.iterations == 0


@pytest.mark.parametrize("solver", [cg, bicgstab])
def test_a_function_may_return_the_same_memory_each_time(solver: Any) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((8, 8))
    dense, b = torch.from_numpy(a @ a.T + 4 * np.eye(8)), torch.from_numpy(rng.standard_normal(8))
    own = torch.empty(8, dtype=torch.float64)
    for precision in ("single", "double"):
        found = solver(lambda v: torch.mv(dense, v, out=own), b, precision=precision)
        assert found.converged
        assert torch.allclose(found.x, torch.linalg.solve(dense, b))


@pytest.mark.parametrize("n", [3, 40])
def test_a_function_that_computes_in_float32_is_as_symmetric_as_its_matrix(n: int) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        half, b = rng.standard_normal((n, n)), rng.standard_normal(n)
        a = (half @ half.T + n * np.eye(n)).astype(np.float32)
        a = (a + a.T) / 2
        for solver in (cg, minres):
            found = solver(lambda v, a=a: a @ v.astype(np.float32), b, rtol=1e-5)
            assert found.converged
            assert np.linalg.norm(b - a.astype(float) @ found.x) <= 1.1e-5 * np.linalg.norm(b)
        lopsided = a + np.triu(half.astype(np.float32), 1)
        with pytest.raises(ArgumentError, match="not symmetric"):
            cg(lambda v, a=lopsided: a @ v.astype(np.float32), b)


@pytest.mark.parametrize(
    "solver", [cg, minres, bicgstab, gmres, gcr, lsqr, lambda *v, **k: multishift_cg(*v, [0.0], **k)[0]]
)
@pytest.mark.parametrize("kind", [torch.tensor, np.array, np.float32, np.float64])
def test_tolerances_of_any_real_type_are_numbers_of_double_precision(solver: Any, kind: Any) -> None:
    a, b = laplacian(1e-1, 5), 1e-150 * right(25)
    rtol, atol = kind(2.0**-20), kind(2.0**-100)
    expected = solver(a, b, rtol=2.0**-20)
    for found in (solver(a, b, rtol=rtol), solver(a, b, rtol=rtol, atol=kind(0.0))):
        assert type(found.converged) is bool
        assert found.iterations == expected.iterations
        assert np.array_equal(found.x, expected.x)
    assert type(solver(a, b, rtol=0.0, atol=atol).converged) is bool


@pytest.mark.parametrize(
    ("a", "b", "options", "error", "said"),
    [
        (np.eye(3), np.ones(4), {}, ArgumentError, "square matrix of that size"),
        (np.eye(3), np.ones((3, 1, 1)), {}, ArgumentError, "expected shape"),
        (np.eye(1), np.array(1.0), {}, ArgumentError, "expected shape"),
        (np.eye(1), np.array(1j), {}, ArgumentError, "expected shape"),
        (np.eye(2), np.array([1, complex(0, np.inf)]), {}, DataError, "b holds NaN"),
        (np.array([[1.0, 2], [0, 1]]), np.ones(2), {}, ArgumentError, "not symmetric"),
        (-np.eye(3), np.ones(3), {}, DataError, "not positive definite"),
        (np.diag([1.0, 3.0] * 9 + [-1.0]), np.r_[np.ones(18), 1e-7], {}, DataError, "not positive definite"),
        (np.diag([1.0, np.nan]), np.ones(2), {}, DataError, "A holds NaN"),
        (np.eye(2), np.array([1, np.inf]), {}, DataError, "b holds NaN"),
        ("matrix", np.ones(2), {}, ArgumentError, "A is a str"),
        (np.eye(2), torch.ones(2).to_sparse(), {}, ArgumentError, r"b is sparse; .*\.to_dense\(\)"),
        (np.eye(2), sp.csr_array(np.ones((2, 1))), {}, ArgumentError, r"b is sparse; .*\.toarray\(\)"),
        (np.eye(2), torch.ones(2), {"x0": torch.ones(2).to_sparse()}, ArgumentError, "x0 is sparse"),
        (lambda v: v.to_sparse(), torch.ones(2), {}, ArgumentError, "what a function gives is sparse"),
        (np.eye(2), np.ones(2), {"rtol": 2}, ArgumentError, "rtol=2"),
        (np.eye(2), np.ones(2), {"rtol": None}, ArgumentError, "rtol=None; expected a relative residual"),
        (np.eye(2), np.ones(2), {"atol": "1"}, ArgumentError, "atol='1'; expected a residual"),
        (np.eye(2), np.ones(2), {"maxiter": "3"}, ArgumentError, "maxiter='3'; expected at least 1, a whole"),
        (np.eye(2), np.ones(2), {"maxiter": 2.5}, ArgumentError, "maxiter=2.5; expected at least 1, a whole"),
        (np.eye(2), np.ones(2), {"rtol": torch.tensor(0.5 + 0.5j)}, ArgumentError, "rtol=tensor"),
        (np.eye(2), np.ones(2), {"rtol": np.ones(1) / 2}, ArgumentError, "rtol=array"),
        (np.eye(2), np.ones(2), {"atol": 10**400}, ArgumentError, "atol=10000"),
        (np.eye(2), np.ones(2), {"delta": 1.5}, ArgumentError, "delta=1.5"),
        (np.eye(2), np.ones(2), {"delta": np.nan}, ArgumentError, "delta=nan"),
        (np.eye(2), np.ones(2), {"delta": 0.5j}, ArgumentError, "delta=0.5j"),
        (np.eye(2), np.ones(2), {"precision": None}, ArgumentError, "precision=None; expected a name"),
        (np.eye(2), np.ones(2), {"M": np.ones(2)}, ArgumentError, r"M has the shape \(2,\); expected"),
        (np.eye(2), np.ones(2), {"M": np.eye(3)}, ArgumentError, r"M has the shape \(3, 3\), b has 2 values"),
        (np.eye(2), np.ones(2), {"M": np.diag([1.0, np.nan])}, DataError, "M holds NaN"),
        (np.eye(2), np.ones(2), {"M": sp.csr_array([[np.nan]])}, DataError, "M holds NaN"),
        (np.eye(2), np.ones(2), {"M": np.diag([1e300, 1e-300])}, DataError, "M holds values more than 1e300"),
        (np.eye(2), np.ones(2), {"M": "M"}, ArgumentError, "M is a str"),
        (np.eye(2), np.ones(2), {"M": np.eye(2, dtype=object)}, ArgumentError, "M is object"),
        (
            np.eye(2),
            np.ones(2),
            {"M": sp.csr_array(np.eye(2, dtype="g"))},
            ArgumentError,
            "M is .* double at most",
        ),
        (np.eye(2), np.ones(2), {"M": torch.eye(2).requires_grad_()}, ArgumentError, r"pass M.detach\(\)"),
        (np.eye(2), np.ones(2), {"deflation": np.ones((2, 1))}, ArgumentError, "deflation is a ndarray"),
    ],
)
def test_bad_input_is_refused(
    a: Any, b: Any, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        cg(a, b, **options)
