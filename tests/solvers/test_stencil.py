"""Stencils: the operator is the matrix it says, and its own kernels reach what double precision reaches."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers import Stencil, cg, krylov_precision


def faces(nz: int, ny: int, nx: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [np.exp(rng.standard_normal(s)) for s in ((nz, ny, nx + 1), (nz, ny + 1, nx), (nz + 1, ny, nx))]


def matrix(x: Any, y: Any, z: Any, shift: float) -> Any:
    """Return the matrix of a stencil from its definition: for each face, the difference of its two cells."""
    nz, ny, nx = x.shape[0], x.shape[1], y.shape[2]
    total = sp.csr_array((nz * ny * nx,) * 2)
    sizes = (nz, ny, nx)
    for axis, f in enumerate((z, y, x)):
        n = sizes[axis]
        difference = sp.diags([1.0, -1.0], [0, -1], shape=(n + 1, n))
        parts = [sp.identity(s) for s in sizes]
        parts[axis] = difference
        d = sp.kron(sp.kron(parts[0], parts[1]), parts[2])
        total = total + d.T @ sp.diags(f.ravel()) @ d
    return (total + shift * sp.identity(nz * ny * nx)).tocsr()


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 4, 5), (2, 5, 32), (4, 3, 45), (2, 6, 1)], ids=str)
def test_it_is_the_matrix_of_its_faces(shape: tuple[int, int, int]) -> None:
    of = faces(*shape)
    a, expected = Stencil(*of, shift=0.5), matrix(*of, 0.5)
    v = torch.randn(a.n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert np.allclose(a.exact(v).numpy(), expected @ v.numpy(), rtol=1e-13, atol=1e-13)
    for times in (a.exact, a.rounded(None)):
        with pytest.raises(ArgumentError, match="v is complex"):
            times(1j * v)
    low = a.rounded(None)(v.float())
    assert low.dtype == torch.float32
    assert np.allclose(low.numpy(), expected @ v.numpy(), rtol=1e-5, atol=1e-5)
    assert np.abs(expected).sum(1).max() <= a.largest()
    assert abs(a.to_scipy() - expected).max() <= 1e-13 * abs(expected).max()


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("end", [0, -1])
def test_its_bound_holds_where_the_outermost_faces_are_the_largest(axis: int, end: int) -> None:
    of = faces(3, 4, 5)
    np.moveaxis(of[axis], 2 - axis, 0)[end] *= 1000
    assert np.abs(matrix(*of, 0.5)).sum(1).max() <= Stencil(*of, shift=0.5).largest()


def test_a_direction_of_nothing_leaves_the_expected_length_as_it_was() -> None:
    a = Stencil(*faces(3, 4, 5), shift=0.5)
    vectors = a.cg_vectors(krylov_precision("site_int16"))
    assert vectors is not None
    vectors.load(torch.zeros(a.n, dtype=torch.float64))
    assert vectors.update_direction(1.0, 0.0) == (0.0, 0.0)
    assert vectors.gain == a.largest()


@pytest.mark.parametrize("exponent", [-1000, -560, 520, 1010])
def test_poisson_does_not_depend_on_the_unit_of_its_coefficients(exponent: int) -> None:
    k = np.exp(np.random.default_rng(0).standard_normal((2, 3, 4)))
    plain = Stencil.poisson(k).to_scipy().toarray()
    scaled = Stencil.poisson(np.ldexp(k, exponent)).to_scipy().toarray()
    assert np.array_equal(np.ldexp(scaled, -exponent), plain)


def test_poisson_of_constant_coefficients_is_the_laplacian() -> None:
    a = Stencil.poisson(np.full((3, 4, 5), 2.0))
    of = [np.full(s, 2.0) for s in ((3, 4, 6), (3, 5, 5), (4, 4, 5))]
    v = torch.arange(60, dtype=torch.float64)
    assert np.allclose(a.exact(v).numpy(), matrix(*of, 0.0) @ v.numpy())


@pytest.mark.parametrize(
    "precision",
    [
        "double",
        "single",
        "scaled_fp16",
        "fp32/scaled_fp16",
        "site_int16/scaled_fp16",
        "site_int16",
        "auto",
        "fp32/quda_half",
    ],
)
def test_every_precision_reaches_the_true_residual(precision: str) -> None:
    rng = np.random.default_rng(0)
    a = Stencil.poisson(np.exp(rng.standard_normal((20, 18, 33)) / 2))
    b = rng.standard_normal(a.n)
    double = cg(a, b, precision="double")
    found = cg(a, b, precision=precision)
    assert found.converged
    assert found.residual <= 1.000001e-10
    assert found.iterations <= 1.3 * double.iterations
    assert np.linalg.norm(found.x - double.x) <= 1e-7 * np.linalg.norm(double.x)
    assert double.reliable_updates > 0


@pytest.mark.parametrize("precision", ["scaled_fp16", "site_int16"])
def test_without_reliable_updates_claim_and_truth_part_ways(precision: str) -> None:
    a = Stencil.poisson(np.ones((16, 16, 32)))
    b = np.random.default_rng(0).standard_normal(a.n)
    found = cg(a, b, precision=precision, delta=None)
    assert found.claimed <= 1e-10
    assert found.residual > 1e-5
    assert not found.converged


def test_both_triggers_serve() -> None:
    a = Stencil.poisson(np.ones((16, 16, 32)))
    b = np.random.default_rng(0).standard_normal(a.n)
    found = cg(a, b, precision="site_int16", trigger="deviation")
    assert found.converged
    assert found.reliable_updates > 0


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (
            lambda: Stencil(np.ones((2, 2, 2)), np.ones((2, 3, 2)), np.ones((3, 2, 2))),
            ArgumentError,
            "expected",
        ),
        (lambda: Stencil(np.ones(3), np.ones(3), np.ones(3)), ArgumentError, "expected"),
        (lambda: Stencil.poisson(np.full((2, 2, 2), np.nan)), ArgumentError, "positive"),
        (lambda: Stencil.poisson(np.ones((2, 2))), ArgumentError, "positive"),
        (lambda: Stencil.poisson(np.full((1, 1, 2), 1 + 5j)), ArgumentError, "k holds complex numbers"),
        (lambda: Stencil.poisson(np.ma.masked_less(np.ones((1, 1, 2)), 2)), ArgumentError, "k is a masked"),
        (lambda: Stencil.poisson(np.ones((1, 1, 2)), 1j), ArgumentError, "shift=1j; expected a finite real"),
        (
            lambda: Stencil(np.ones((1, 1, 2)), np.full((1, 2, 1), 1 + 0j), np.ones((2, 1, 1))),
            ArgumentError,
            "y holds complex numbers",
        ),
        (
            lambda: Stencil(np.ones((1, 1, 2)), np.ones((1, 2, 1)), np.ma.ones((2, 1, 1))),
            ArgumentError,
            "z is a masked array",
        ),
        (lambda: Stencil.poisson(np.ones((1, 1, 5000))), ArgumentError, "at most 4096"),
        (lambda: Stencil.poisson(np.ones((1, 1, 5)), np.inf), ArgumentError, "shift=inf; expected a finite"),
        (
            lambda: Stencil(np.full((1, 1, 2), np.inf), np.ones((1, 2, 1)), np.ones((2, 1, 1))),
            DataError,
            "NaN",
        ),
        (lambda: cg(Stencil.poisson(np.ones((1, 1, 5))), np.ones(4)), ArgumentError, "square matrix of that"),
        (
            lambda: cg(Stencil.poisson(np.ones((1, 1, 5)), -9.0), np.ones(5)),
            DataError,
            "not positive definite",
        ),
    ],
)
def test_bad_input_is_refused(make: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make()


def test_a_row_of_cells_has_a_matrix_of_three_diagonals() -> None:
    a = Stencil.poisson(np.ones((1, 1, 5)))
    expected = 6 * np.eye(5) - np.eye(5, k=1) - np.eye(5, k=-1)
    assert np.array_equal(a.to_scipy().toarray(), expected)
