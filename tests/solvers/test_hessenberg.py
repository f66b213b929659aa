"""Givens rotations solve the least squares problems of GMRES as LAPACK does."""

import numpy as np
import pytest
import torch

from fewbits.solvers.hessenberg import HessenbergQR


def hessenberg(rng: np.random.Generator, k: int, m: int, dtype: type) -> np.ndarray:
    h = rng.standard_normal((k, m + 1, m)).astype(dtype)
    if dtype is complex:
        h = h + 1j * rng.standard_normal(h.shape)
    h = np.triu(h, -1)
    below = np.abs(np.diagonal(h, -1, 1, 2))
    h[:, np.arange(1, m + 1), np.arange(m)] = below
    return h


def grown(h: np.ndarray, size: np.ndarray, dtype: str) -> tuple[HessenbergQR, list[np.ndarray]]:
    m = h.shape[2]
    qr = HessenbergQR(size, m, dtype)
    residuals = []
    for j in range(m):
        below = h[:, j + 1, j].real.copy()
        before = np.linalg.norm(h[:, : j + 2, j], axis=1)
        residuals.append(qr.append(h[:, : j + 1, j], below, before))
    return qr, residuals


@pytest.mark.parametrize("dtype", [float, complex])
def test_weights_and_residuals_are_those_of_lapack(dtype: type) -> None:
    rng = np.random.default_rng(0)
    h, size = hessenberg(rng, 3, 9, dtype), np.array([1.0, 1e-100, 7.0])
    qr, residuals = grown(h, size, "complex128" if dtype is complex else "float64")
    for i in range(3):
        for j in range(9):
            right = np.zeros(j + 2, dtype)
            right[0] = size[i]
            y = np.linalg.lstsq(h[i, : j + 2, : j + 1], right, rcond=None)[0]
            left = np.linalg.norm(right - h[i, : j + 2, : j + 1] @ y)
            assert residuals[j][i] == pytest.approx(left, rel=1e-12)
        assert np.allclose(qr.solution()[i].numpy(), y, rtol=1e-10, atol=1e-12 * size[i])
    assert not qr.complete.any()


def test_an_exact_solution_completes_its_space_and_leaves_the_others_alone() -> None:
    rng = np.random.default_rng(1)
    h = hessenberg(rng, 2, 5, float)
    h[0, 3, 2] = 0.0  # the third vector maps into the span of the first three
    h[0, :, 3:] = 0.0
    qr, residuals = grown(h, np.ones(2), "float64")
    assert residuals[2][0] <= 1e-15
    assert residuals[-1][0] == residuals[2][0]
    y = qr.solution()[0].numpy()
    assert np.allclose(h[0, :3, :3] @ y[:3], [1, 0, 0])
    assert (y[3:] == 0).all()
    right = np.eye(6)[0]
    assert np.allclose(qr.solution()[1].numpy(), np.linalg.lstsq(h[1], right, rcond=None)[0])
    assert qr.complete.tolist() == [True, False]


def test_a_singular_matrix_keeps_the_least_residual_it_can_have() -> None:
    h = np.zeros((1, 3, 2))
    h[0, :2, 0] = [0.0, 1.0]  # A v1 = v2, A v2 = 0
    qr, residuals = grown(h, np.ones(1), "float64")
    assert [float(r[0]) for r in residuals] == [1.0, 1.0]
    assert bool(torch.isfinite(qr.solution()).all())
    assert qr.complete.all()


def test_a_right_hand_side_of_zeros_is_complete_from_the_start() -> None:
    qr = HessenbergQR(np.array([0.0, 1.0]), 2, "float64")
    assert qr.complete.tolist() == [True, False]
    residuals = qr.append(np.array([[0.0], [1.0]]), np.array([0.0, 1.0]), np.array([0.0, 1.5]))
    assert residuals[0] == 0
    assert qr.solution()[0].tolist() == [0.0]
