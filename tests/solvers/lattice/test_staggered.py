"""Staggered fermions: the textbook's, site by site; antihermitian hops; even sites alone; 16 bits."""

from typing import Any

import numpy as np
import pytest
import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers import Deflation, lattice
from fewbits.solvers.precision import krylov_precision
from tests.solvers.lattice import textbook

SHAPE = (2, 4, 2, 4)
LINKS = lattice.random_links(SHAPE, seed=3)
SMOOTH = lattice.smooth_links((4, 4, 4, 4), 0.4, seed=2)
ANTIPERIODIC = (-1, 1, 1, 1)


def colours(shape: Any = SHAPE, seed: int = 0) -> Any:
    generator = np.random.default_rng(seed)
    return generator.standard_normal((*shape, 3)) + 1j * generator.standard_normal((*shape, 3))


def wrong_phase(n: Any, mu: int) -> int:
    """Return the phases of another order of the axes: t, z, y before x."""
    return int((-1) ** sum(n[: 3 - mu]))


@pytest.mark.parametrize("boundary", [(1, 1, 1, 1), ANTIPERIODIC, (1, -1, 1, -1)], ids=str)
def test_it_is_the_textbooks_site_by_site(boundary: Any) -> None:
    chi, field = colours(), textbook.Field(LINKS, boundary)
    one = lattice.Staggered(LINKS, mass=0.3, boundary=boundary)
    found, expected = one.apply(chi), textbook.staggered(field, chi, 0.3)
    assert np.abs(found - expected).max() <= 1e-14 * np.abs(expected).max()
    assert np.abs(found - textbook.staggered(field, chi, 0.3, phase=wrong_phase)).max() > 0.1
    assert np.abs(found - textbook.staggered(field, chi, 0.3, back=1)).max() > 0.1
    if -1 in boundary:
        assert np.abs(found - textbook.staggered(textbook.Field(LINKS), chi, 0.3)).max() > 0.1


def test_hops_are_antihermitian_and_epsilon_turns_the_operator_to_its_adjoint() -> None:
    one, shape = lattice.Staggered(LINKS, mass=0.3, boundary=ANTIPERIODIC), (*SHAPE, 3)
    m = textbook.matrix(one.apply, shape)
    d = m - 0.3 * np.eye(len(m))
    assert np.abs(d + d.conj().T).max() < 1e-15
    sign = (-1.0) ** np.indices(SHAPE).sum(0).repeat(3)
    assert np.abs(sign[:, None] * m * sign - m.conj().T).max() < 1e-15
    chi = colours()
    assert np.abs(one.apply_adjoint(chi).reshape(-1) - m.conj().T @ chi.reshape(-1)).max() < 1e-13
    # Even sites are not mixed with odd ones by M^+ M, and the operator on them is its block.
    square = m.conj().T @ m
    even = sign > 0
    assert np.abs(square[np.ix_(even, ~even)]).max() < 1e-15
    v = np.where(even, chi.reshape(-1), 0)
    found = one.even_normal.exact(torch.from_numpy(one.flat(v.reshape(shape)))).numpy()
    assert np.abs(one.field(found).reshape(-1) - square @ v).max() < 1e-13
    found = one.normal.exact(torch.from_numpy(one.flat(chi))).numpy()
    assert np.abs(one.field(found).reshape(-1) - square @ chi.reshape(-1)).max() < 1e-13


def test_free_quarks_have_the_energies_that_they_should() -> None:
    one = lattice.Staggered(lattice.unit_links((4, 4, 4, 4)), mass=0.2, boundary=ANTIPERIODIC)
    eigenvalues = []
    p_t = 2 * np.pi * (np.arange(4) + 0.5) / 4
    p = 2 * np.pi * np.arange(4) / 4
    for a in p_t:
        for b in p:
            for c in p:
                for d in p:
                    eigenvalues.append(0.04 + sum(np.sin([a, b, c, d]) ** 2))
    chi = colours((4, 4, 4, 4))
    image, power = chi, []
    for _ in range(3):
        image = one.apply_adjoint(one.apply(image))
        power.append(np.vdot(chi, image).real / np.vdot(chi, chi).real)
    assert min(eigenvalues) - 1e-12 <= power[0] <= max(eigenvalues) + 1e-12
    # The minimal polynomial of the spectrum takes every vector to zero.
    rest = chi
    for value in np.unique(np.round(eigenvalues, 10)):
        rest = one.apply_adjoint(one.apply(rest)) - value * rest
    assert np.abs(rest).max() < 1e-8


@pytest.mark.parametrize("even_odd", [False, True])
def test_narrow_solvers_reach_what_double_reaches(even_odd: bool) -> None:
    one = lattice.Staggered(SMOOTH, mass=0.2, boundary=ANTIPERIODIC)
    b, field = colours((4, 4, 4, 4)), textbook.Field(SMOOTH, ANTIPERIODIC)
    double = one.solve(b, precision="double", even_odd=even_odd)
    assert double.converged
    for precision, share in (("single", 1.05), ("half", 1.2), ("quarter", 1.7)):
        found = one.solve(b, precision=precision, even_odd=even_odd)
        assert found.converged
        assert found.path == (precision,)
        assert found.iterations <= share * double.iterations
        rest = np.linalg.norm(b - textbook.staggered(field, found.x, 0.2)) / np.linalg.norm(b)
        assert rest <= 1.0001e-10
        assert found.residual == pytest.approx(rest, rel=1e-3)
    careless = one.solve(b, precision="half", even_odd=even_odd, delta=None)
    assert not careless.converged


def test_even_sites_give_the_solution_of_all_and_of_a_dense_solver() -> None:
    one, b = lattice.Staggered(LINKS, mass=0.1), colours()
    dense = textbook.matrix(lambda v: textbook.staggered(textbook.Field(LINKS), v, 0.1), b.shape)
    expected = np.linalg.solve(dense, b.reshape(-1)).reshape(b.shape)
    seen: list[Any] = []
    for even_odd in (False, True):
        for scale in (1.0, 1e-170):
            start = None if scale == 1.0 else scale * np.roll(b, 1, 0)
            found = one.solve(
                scale * b, start, rtol=1e-12, precision="half", even_odd=even_odd, callback=seen.append
            )
            assert found.converged
            assert np.abs(found.x / scale - expected).max() < 1e-9
            assert np.abs(seen[-1] / scale - expected).max() < 1e-6
    zero = one.solve(np.zeros_like(b), even_odd=True)
    assert zero.converged
    assert not zero.x.any()
    assert one.solve(b, expected, even_odd=True).iterations == 0
    loose = one.solve(b, atol=1e-3, rtol=0.0, even_odd=True)
    assert np.linalg.norm(b - one.apply(loose.x)) <= 1e-3


def test_each_site_of_a_vector_has_its_own_norm() -> None:
    """Sites of very different size keep their digits: with a norm for 24 numbers the small ones lose them."""
    one, chi = lattice.Staggered(SMOOTH, mass=0.2), colours((4, 4, 4, 4))
    chi *= 10.0 ** -np.arange(0, 8, 2)[:, None]  # along X
    vectors: Any = one.normal.cg_vectors(krylov_precision("half"))
    vectors.load(torch.from_numpy(one.flat(chi)))
    vectors.update_direction(1.0, 0.0)
    p, _ = vectors.direction()
    off = np.abs(one.field(p.double().numpy()) - chi).max(-1)
    assert (off / np.abs(chi).max(-1)).max() < 1e-4


@pytest.mark.parametrize("reconstruct", [18, 12, 8])
def test_links_of_fewer_numbers_solve_too(reconstruct: int) -> None:
    hot, b = lattice.random_links((4, 4, 4, 4), seed=1), colours((4, 4, 4, 4))
    one = lattice.Staggered(hot, mass=0.3, reconstruct=reconstruct)
    double, found = one.solve(b, precision="double"), one.solve(b, precision="half", even_odd=True)
    assert double.converged
    assert found.converged
    assert found.iterations <= 1.2 * double.iterations
    rest = b - textbook.staggered(textbook.Field(hot), found.x, 0.3)
    assert np.linalg.norm(rest) <= 1.0001e-10 * np.linalg.norm(b)
    assert one.normal.links.stored(np.int16).nbytes == 256 * 4 * 2 * reconstruct


def test_general_vectors_serve_formats_that_the_kernels_lack() -> None:
    one, b = lattice.Staggered(SMOOTH, mass=0.3), colours((4, 4, 4, 4))
    for precision in ("quda_half/fp32", "fp32/quda_half"):
        assert one.solve(b, precision=precision).converged, precision


def test_bad_input_is_refused() -> None:
    with pytest.raises(ArgumentError, match="mass=0"):
        lattice.Staggered(LINKS, mass=0.0)
    with pytest.raises(ArgumentError, match="expected even sizes"):
        lattice.Staggered(lattice.unit_links((2, 3, 2, 4)), mass=0.1)
    with pytest.raises(ArgumentError, match="along T, Z, Y and X"):
        lattice.Staggered(LINKS, mass=0.1, boundary=(1, 2, 1, 1))
    one = lattice.Staggered(LINKS, mass=0.1)
    with pytest.raises(ArgumentError, match=r"expected complex \(2, 4, 2, 4, 3\)"):
        one.solve(colours((2, 2, 2, 4)))
    with pytest.raises(DataError, match="NaN"):
        one.apply(colours() * np.nan)
    with pytest.raises(ArgumentError, match="links cannot be held in"):
        one.solve(colours(), precision="fp16")
    with pytest.raises(ArgumentError, match="modes of another operator"):
        one.solve(colours(), even_odd=True, deflation=Deflation(one.normal, one.flat(colours())[:, None]))
