"""The Wilson operator and its systems: the laws of lattice QCD; 16 bits reach what double reaches."""

from typing import Any

import numpy as np
import pytest
import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.kernels.reference.lattice import wilson as reference
from fewbits.solvers import cg, lattice

SHAPE = (4, 6, 4, 8)
LINKS = lattice.random_links(SHAPE, seed=1)
SMALL = lattice.random_links((2, 4, 2, 4), seed=3)
SMOOTH = lattice.smooth_links((8, 8, 4, 4), 0.5, seed=2)


def spinor(shape: tuple[int, ...] = SHAPE, seed: int = 0) -> Any:
    generator = np.random.default_rng(seed)
    return generator.standard_normal((*shape, 4, 3)) + 1j * generator.standard_normal((*shape, 4, 3))


@pytest.mark.parametrize("reconstruct", [18, 12, 8])
def test_it_is_the_definition(reconstruct: int) -> None:
    one, psi = lattice.Wilson(LINKS, mass=-0.2, reconstruct=reconstruct), spinor()
    assert np.abs(one.apply(psi) - reference.wilson(LINKS, psi, -0.2)).max() < 1e-13
    gamma_5 = reference.GAMMA_5[:, None]
    adjoint = gamma_5 * reference.wilson(LINKS, gamma_5 * psi, -0.2)
    assert np.abs(one.apply_adjoint(psi) - adjoint).max() < 1e-13


@pytest.mark.parametrize("shape", [(4, 2, 2, 4), (3, 2, 4, 2), (1, 3, 2, 5)], ids=str)
@pytest.mark.parametrize("boundary", [(1, 1, 1, 1), (-1, 1, 1, 1), (-1, 1, -1, -1)], ids=str)
def test_boundaries_and_odd_sizes_are_those_of_the_definition(
    shape: tuple[int, ...], boundary: tuple[int, ...]
) -> None:
    links, psi = lattice.smooth_links(shape, 0.4, seed=1), spinor(shape)
    one = lattice.Wilson(links, mass=0.2, boundary=boundary)
    signed = links.copy()
    for axis, sign in enumerate(boundary):
        np.moveaxis(signed[3 - axis], axis, 0)[-1] *= sign
    assert np.abs(one.apply(psi) - reference.wilson(signed, psi, 0.2)).max() < 1e-13
    gamma_5 = reference.GAMMA_5[:, None]
    adjoint = gamma_5 * reference.wilson(signed, gamma_5 * psi, 0.2)
    assert np.abs(one.apply_adjoint(psi) - adjoint).max() < 1e-13
    for scale in (1.0, 1e-170):
        found = one.solve(scale * psi, precision="half")
        assert found.converged
        assert found.x.shape == psi.shape
        rest = psi - reference.wilson(signed, found.x / scale, 0.2)
        assert np.linalg.norm(rest) <= 1.0001e-10 * np.linalg.norm(psi)


def test_the_adjoint_is_the_adjoint_and_the_normal_operator_their_product() -> None:
    one, u, v = lattice.Wilson(LINKS, mass=0.1), spinor(seed=1), spinor(seed=2)
    assert np.vdot(u, one.apply(v)) == pytest.approx(np.vdot(one.apply_adjoint(u), v), rel=1e-12)
    v_from_zero = v.copy()
    v_from_zero.flat[0] = 0  # no shortcut of a vector of zeros
    for vector in (v, v_from_zero):
        product = one.spinor(one.normal.exact(torch.from_numpy(one.flat(vector))).numpy())
        assert np.abs(product - one.apply_adjoint(one.apply(vector))).max() < 1e-12


def test_a_change_of_gauge_changes_the_spinor_and_nothing_else() -> None:
    psi, g = spinor(), lattice.random_links(SHAPE, seed=5)[0]
    turned = LINKS.copy()
    for mu in range(4):
        turned[mu] = g @ LINKS[mu] @ np.roll(g, -1, 3 - mu).conj().swapaxes(-1, -2)
    turn = lambda v: np.einsum("...ij,...sj->...si", g, v)  # noqa: E731
    there = lattice.Wilson(lattice.project(turned), mass=0.1).apply(turn(psi))
    assert np.abs(there - turn(lattice.Wilson(LINKS, mass=0.1).apply(psi))).max() < 1e-12


@pytest.mark.parametrize("momentum", [(0, 0, 0, 0), (1, 0, 2, 3), (2, 3, 1, 5)])
def test_plane_waves_are_what_free_quarks_are(momentum: tuple[int, ...]) -> None:
    mass, shape = 0.3, SHAPE
    p = 2 * np.pi * np.array(momentum) / shape  # along t, z, y, x
    phase = np.exp(1j * np.tensordot(p, np.indices(shape), 1))
    inner = spinor((1, 1, 1, 1))
    wave = phase[..., None, None] * inner
    scalar = mass + (1 - np.cos(p)).sum()
    symbol = scalar * np.eye(4) + 1j * np.tensordot(np.sin(p[::-1]), reference.GAMMAS, 1)
    one = lattice.Wilson(lattice.unit_links(shape), mass=mass)
    expected = phase[..., None, None] * np.einsum("st,...tc->...sc", symbol, inner)
    assert np.abs(one.apply(wave) - expected).max() < 1e-13
    eigenvalue = scalar**2 + (np.sin(p) ** 2).sum()
    assert np.abs(one.apply_adjoint(one.apply(wave)) - eigenvalue * wave).max() < 1e-12
    assert np.linalg.eigvals(symbol) == pytest.approx(
        scalar + 1j * np.sqrt((np.sin(p) ** 2).sum()) * np.sign(np.linalg.eigvals(symbol).imag), abs=1e-12
    )


# Shares of the iterations of double precision.
@pytest.mark.parametrize(("precision", "share"), [("single", 1.05), ("half", 1.1), ("quarter", 1.6)])
@pytest.mark.parametrize("reconstruct", [18, 12])
def test_narrow_solvers_reach_what_double_reaches(precision: str, share: float, reconstruct: int) -> None:
    one, b = lattice.Wilson(SMOOTH, mass=-0.3, reconstruct=reconstruct), spinor(SMOOTH.shape[1:5])
    double, found = one.solve(b, precision="double"), one.solve(b, precision=precision)
    assert double.converged
    assert found.converged
    assert found.path == (precision,)
    assert np.linalg.norm(b - one.apply(found.x)) <= 1.0001e-10 * np.linalg.norm(b)
    assert np.abs(found.x - double.x).max() < 1e-8
    assert found.iterations <= share * double.iterations
    assert len(found.history) == found.iterations


def test_eight_numbers_solve_too_on_a_hot_field() -> None:
    one, b = lattice.Wilson(LINKS, mass=0.1, reconstruct=8), spinor()
    double = one.solve(b, precision="double")
    found = one.solve(b, precision="half")
    assert found.converged
    assert found.iterations <= 1.3 * double.iterations


def test_without_reliable_updates_half_claims_what_is_not_so() -> None:
    one, b = lattice.Wilson(SMOOTH, mass=-0.3), spinor(SMOOTH.shape[1:5])
    found = one.solve(b, precision="half", delta=None)
    assert found.claimed <= 1e-10
    assert found.residual > 1e-7
    assert not found.converged


def test_half_is_the_default_and_a_single_attempt_need_not_suffice() -> None:
    free = lattice.Wilson(
        lattice.unit_links((4, 4, 4, 8)), mass=0.01
    )  # the smallest mode lies far below the others
    b = np.ones((4, 4, 4, 8, 4, 3), complex) * (1 + 1e-3 * spinor((4, 4, 4, 8)))
    found = free.solve(b)
    assert found.path == ("half",)
    assert found.converged
    assert np.linalg.norm(b - free.apply(found.x)) <= 1.0001e-10 * np.linalg.norm(b)


def test_the_watcher_sees_every_iteration_once_and_most_bounds_them_all() -> None:
    one, b, seen = lattice.Wilson(SMOOTH, mass=-0.3), spinor(SMOOTH.shape[1:5]), []
    found = one.solve(b, precision="half", watch=lambda _, i, residual: seen.append((i, residual)))
    assert [i for i, _ in seen] == list(range(1, found.iterations + 1))
    assert [residual for _, residual in seen] == pytest.approx(found.history)
    short = one.solve(b, precision="half", maxiter=20)
    assert not short.converged
    assert short.iterations == 20


def test_general_vectors_serve_formats_that_the_kernels_lack() -> None:
    one, b = lattice.Wilson(SMALL, mass=0.1), spinor(SMALL.shape[1:5])
    for precision in ("quda_half/fp32", "fp32/bf16", "fp32/quda_half"):
        assert one.solve(b, precision=precision).converged, precision
    with pytest.raises(ArgumentError, match="links cannot be held in"):
        one.solve(b, precision="fp16")


def test_the_normal_operator_is_one_for_every_solver() -> None:
    one = lattice.Wilson(SMALL, mass=0.1)
    b = torch.from_numpy(one.flat(spinor(SMALL.shape[1:5])))
    found = cg(one.normal, b, rtol=1e-8)
    assert found.converged
    assert found.path == ("half",)
    assert torch.linalg.vector_norm(b - one.normal.exact(found.x)) <= 1.01e-8 * torch.linalg.vector_norm(b)
    again = cg(one.normal, b, rtol=1e-8, M=lambda r: r / 4)
    assert again.converged


def test_zeros_give_zeros() -> None:
    found = lattice.Wilson(LINKS, mass=0.1).solve(np.zeros((*SHAPE, 4, 3), complex))
    assert found.converged
    assert not found.x.any()


@pytest.mark.parametrize(
    ("b", "options", "error", "said"),
    [
        (
            spinor()[:2],
            {},
            ArgumentError,
            r"complex128 \(2, 6, 4, 8, 4, 3\); expected complex \(4, 6, 4, 8, 4, 3\)",
        ),
        (spinor().astype("U8"), {}, ArgumentError, "a spinor field is <U8"),
        ([1.0], {}, ArgumentError, "a spinor field is list"),
        (spinor() * np.nan, {}, DataError, "holds NaN or infinity"),
        (spinor(), {"rtol": 2}, ArgumentError, "rtol=2"),
        (spinor(), {"delta": 2}, ArgumentError, "delta=2"),
        (spinor(), {"precision": "tiny"}, ArgumentError, "there is no precision 'tiny'"),
    ],
)
def test_bad_input_is_refused(b: Any, options: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        lattice.Wilson(LINKS, mass=0.1).solve(b, **options)


@pytest.mark.parametrize("boundary", [(1, 1, 1, 1), (-1, 1, -1, 1)], ids=str)
@pytest.mark.parametrize("precision", ["double", "half"])
def test_the_even_sites_give_the_solution_of_all_in_fewer_applications(
    precision: str, boundary: tuple[int, ...]
) -> None:
    one, b = lattice.Wilson(SMOOTH, mass=-0.3, boundary=boundary), spinor(SMOOTH.shape[1:5])
    signed = SMOOTH.copy()
    for axis, sign in enumerate(boundary):
        np.moveaxis(signed[3 - axis], axis, 0)[-1] *= sign
    whole = one.solve(b, precision=precision)
    seen: list[Any] = []
    start = np.roll(b, 1, 0)
    found = one.solve(1e-170 * b, 1e-170 * start, precision=precision, even_odd=True, callback=seen.append)
    x = 1e170 * found.x
    rest = np.linalg.norm(b - reference.wilson(signed, x, -0.3))  # another program's operator
    assert rest <= 1.0001e-10 * np.linalg.norm(b)
    assert found.residual == pytest.approx(rest / np.linalg.norm(b), rel=1e-3)
    assert found.converged
    assert found.path == (precision,)
    assert np.abs(x - whole.x).max() < 1e-8
    assert 1.7 * one.solve(b, precision=precision, even_odd=True).iterations <= whole.iterations
    assert len(seen) == found.iterations
    assert np.abs(1e170 * seen[-1] - x).max() < 1e-8


def test_the_operator_on_even_sites_is_the_schur_complement() -> None:
    shape = SMOOTH.shape[1:5]
    one, psi = lattice.Wilson(SMOOTH, mass=0.1), spinor(shape)
    even = reference.even_sites(shape)[..., None, None]
    schur = one.normal.even_odd_operator()
    found = one.spinor(schur.hermitian(one.flat(np.where(even, psi, 0))))
    expected = reference.GAMMA_5[:, None] * reference.schur(SMOOTH, psi, 0.1)
    assert np.abs(found - expected).max() < 1e-13
    # By blocks of the matrix itself: M_ee - M_eo M_oo^-1 M_oe, on a lattice small enough to write it down.
    small = lattice.random_links((2, 2, 2, 2), seed=3)
    columns = np.eye(192).reshape(192, 2, 2, 2, 2, 4, 3)
    matrix = np.stack([reference.wilson(small, c, 0.1).ravel() for c in columns], 1)
    mask = np.broadcast_to(reference.even_sites((2,) * 4)[..., None, None], (2, 2, 2, 2, 4, 3)).ravel()
    blocks = [matrix[np.ix_(rows, cols)] for rows in (mask, ~mask) for cols in (mask, ~mask)]
    complement = blocks[0] - blocks[1] @ np.linalg.solve(blocks[3], blocks[2])
    v = spinor((2, 2, 2, 2))
    by_blocks = complement @ v.ravel()[mask]
    assert np.abs(reference.schur(small, v, 0.1).ravel()[mask] - by_blocks).max() < 1e-13


def test_even_sites_need_axes_of_multiples_of_four() -> None:
    with pytest.raises(ArgumentError, match="even_odd=True on a lattice of"):
        lattice.Wilson(LINKS, mass=0.1).solve(spinor(), even_odd=True)
    found = lattice.Wilson(SMOOTH, mass=0.1).solve(
        np.zeros((*SMOOTH.shape[1:5], 4, 3), complex), even_odd=True
    )
    assert found.converged
    assert not found.x.any()
