"""Low modes, found in float32 and stored in 16 bits, cut the iterations of an ill-conditioned system."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fewbits.errors import ArgumentError
from fewbits.solvers import Deflation, Stencil, cg, low_modes

MODES = 8


def few_small_eigenvalues(n: int = 600, smallest: float = 1e-3) -> Any:
    """Return a matrix with eigenvalues in [1, 10] but for MODES from ``smallest`` to ten times that."""
    rng = np.random.default_rng(0)
    q, _ = np.linalg.qr(rng.standard_normal((n, n)))
    values = np.concatenate([np.geomspace(smallest, 10 * smallest, MODES), np.linspace(1, 10, n - MODES)])
    a = (q * values) @ q.T
    return (a + a.T) / 2, q[:, :MODES]


@pytest.mark.parametrize("stored", [None, "quda_half"])
@pytest.mark.parametrize("precision", ["double", "fp32/quda_half"])
def test_deflation_cuts_iterations_and_holds_in_16_bits(precision: str, stored: str | None) -> None:
    a, modes = few_small_eigenvalues()
    b = np.random.default_rng(1).standard_normal(len(a))
    plain = cg(a, b, precision=precision, maxiter=20_000)
    deflation = Deflation(a, torch.from_numpy(modes), stored)
    found = cg(a, b, precision=precision, deflation=deflation)
    assert plain.converged
    assert found.converged
    assert found.residual <= 1.000001e-10
    assert found.iterations < plain.iterations / 2


def test_16_bits_that_fail_alone_serve_with_deflation() -> None:
    a, modes = few_small_eigenvalues(smallest=1e-5)
    b = np.random.default_rng(1).standard_normal(len(a))
    assert not cg(a, b, precision="fp32/quda_half", maxiter=2000).converged
    assert cg(a, b, precision="fp32/quda_half", deflation=Deflation(a, torch.from_numpy(modes))).converged


def test_modes_too_rough_to_help_do_no_harm() -> None:
    a, modes = few_small_eigenvalues()
    b = np.random.default_rng(1).standard_normal(len(a))
    plain = cg(a, b, precision="double")
    found = cg(a, b, precision="double", deflation=Deflation(a, torch.from_numpy(modes), "bf16"))
    assert found.converged
    assert found.iterations <= 1.2 * plain.iterations


def test_modes_from_arnoldi_in_float32_serve_as_exact_ones_do() -> None:
    a, _ = few_small_eigenvalues(300)
    modes = low_modes(a, 300, MODES, tol=1e-3)
    assert modes.dtype == torch.float32
    assert modes.shape == (300, MODES)
    b = np.random.default_rng(1).standard_normal(300)
    plain = cg(a, b, precision="single", maxiter=20_000)
    found = cg(a, b, precision="single", deflation=Deflation(a, modes))
    assert found.converged
    assert found.iterations < plain.iterations / 2


@pytest.mark.parametrize("zero", [np.zeros((9, 9)), sp.csr_array((9, 9), dtype=complex), lambda v: 0 * v])
def test_modes_of_zero_are_any_orthonormal_ones(zero: Any) -> None:
    modes = low_modes(zero, 9, 3)
    assert modes.dtype == (torch.complex64 if isinstance(zero, sp.csr_array) else torch.float32)
    assert torch.equal(modes.mH @ modes, torch.eye(3, dtype=modes.dtype))


def test_a_stencil_is_deflated_in_its_own_kernels() -> None:
    a = Stencil(np.ones((1, 4, 201)), np.zeros((1, 5, 200)), np.zeros((2, 4, 200)))
    b = np.random.default_rng(1).standard_normal(a.n)
    matrix = a.to_scipy().toarray()
    _, vectors = np.linalg.eigh(matrix)
    deflation = Deflation(a, torch.from_numpy(vectors[:, :24].copy()))
    plain, found = (cg(a, b, precision="site_int16", deflation=d) for d in (None, deflation))
    assert found.converged
    assert found.iterations < 0.8 * plain.iterations


def test_what_was_stored_is_packed() -> None:
    a = sp.identity(480).tocsr()
    modes = torch.linalg.qr(torch.randn(480, 4, generator=torch.Generator().manual_seed(0))).Q
    deflation = Deflation(a, modes, "quda_half")
    assert deflation.nbytes < 0.6 * 4 * modes.numel()
    assert torch.allclose(deflation.basis, modes.T, atol=1e-4)


def test_bad_modes_are_refused() -> None:
    a = np.eye(4)
    with pytest.raises(ArgumentError, match="expected"):
        Deflation(a, torch.ones(4))
    with pytest.raises(ArgumentError, match=r"the shape \(4, 4\), modes have 5 rows; expected a square"):
        Deflation(a, torch.ones(5, 1))
    with pytest.raises(ArgumentError, match=r"the shape \(4, 4\), n=9; expected a square"):
        low_modes(a, 9, 2)
    with pytest.raises(ArgumentError, match="the modes are zero"):
        Deflation(a, torch.zeros(4, 2), None)
    with pytest.raises(ArgumentError, match="a deflation of 4 unknowns for 6"):
        cg(np.eye(6), np.ones(6), deflation=Deflation(a, torch.ones(4, 1)))
    n: Any
    for n in (4.0, "4", 0):
        with pytest.raises(ArgumentError, match=rf"n={n!r}; expected at least 1, a whole number"):
            low_modes(a, n, 1)
    tol: Any
    for tol in (-1, "a", None, np.nan, np.inf, 1j):
        with pytest.raises(ArgumentError, match=r"tol=.*; expected a relative accuracy"):
            low_modes(np.diag(np.arange(1.0, 10.0)), 9, 2, tol=tol)
    with pytest.raises(ArgumentError, match="k=4"):
        low_modes(a, 4, 4)
    wrong: list[Any] = [2.0, 2.5, True]
    for k in wrong:
        with pytest.raises(ArgumentError, match=rf"k={k} modes of 22; expected a whole number from 1 to 20"):
            low_modes(np.eye(22), 22, k)
    with pytest.raises(ArgumentError, match="not symmetric"):
        low_modes(np.triu(np.ones((9, 9))), 9, 2)


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("stored", [None, "quda_half"])
def test_real_modes_deflate_complex_right_hand_sides(stored: str | None) -> None:
    a, modes = few_small_eigenvalues(300, smallest=1e-5)
    deflation = Deflation(a, torch.from_numpy(modes), stored)
    rng = np.random.default_rng(1)
    real, imaginary = rng.standard_normal((2, 300))
    for r in (real + 1j * imaginary, (real + 1j * imaginary).astype(np.complex64)):
        v = deflation.basis.numpy().T.astype(float)
        exact = v @ np.linalg.solve(v.T @ a @ v, v.T @ r)
        step = deflation.correction(torch.from_numpy(r))
        assert step.dtype == torch.complex128
        assert np.linalg.norm(step.numpy() - exact) <= 1e-6 * np.linalg.norm(exact)
    alone = cg(a, real, deflation=deflation).iterations
    for b in (1j * real, real + 1j * imaginary):
        found = cg(a, b, deflation=deflation)
        assert found.converged
        assert found.iterations <= 1.5 * alone < 0.5 * cg(a, b).iterations
