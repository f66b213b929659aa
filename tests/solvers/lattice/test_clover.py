"""The clover operator: the textbook's, site by site; its blocks; its systems in all precisions."""

from typing import Any

import numpy as np
import pytest

from fewbits.errors import ArgumentError, DataError
from fewbits.kernels.reference.lattice import clover as definition
from fewbits.solvers import lattice
from fewbits.solvers.lattice.blocks import Blocks
from fewbits.solvers.lattice.field_strength import clover_blocks
from fewbits.solvers.lattice.order import natural
from tests.solvers.lattice import textbook

SHAPE = (2, 4, 2, 4)
LINKS = lattice.random_links(SHAPE, seed=3)
SMOOTH = lattice.smooth_links((4, 4, 4, 4), 0.4, seed=2)
ANTIPERIODIC = (-1, 1, 1, 1)


def spinor(shape: Any = SHAPE, seed: int = 0) -> Any:
    generator = np.random.default_rng(seed)
    return generator.standard_normal((*shape, 4, 3)) + 1j * generator.standard_normal((*shape, 4, 3))


@pytest.mark.parametrize("boundary", [(1, 1, 1, 1), ANTIPERIODIC, (1, -1, 1, -1)], ids=str)
@pytest.mark.parametrize("csw", [0.0, 1.0, -1.7])
def test_it_is_the_textbooks_site_by_site(csw: float, boundary: Any) -> None:
    psi, field = spinor(), textbook.Field(LINKS, boundary)
    one = lattice.Clover(LINKS, mass=-0.2, csw=csw, boundary=boundary)
    expected = textbook.clover(field, psi, -0.2, csw)
    size = np.abs(expected).max()
    assert np.abs(one.apply(psi) - expected).max() <= 1e-14 * size
    # What is wrong by one leaf, by the sign of the term or by the boundary is far off.
    if csw:
        assert np.abs(one.apply(psi) - textbook.clover(field, psi, -0.2, csw, leaf_sign=-1)).max() > 0.1
        assert np.abs(one.apply(psi) - textbook.clover(field, psi, -0.2, -csw)).max() > 0.1
    if -1 in boundary:
        assert np.abs(one.apply(psi) - textbook.clover(textbook.Field(LINKS), psi, -0.2, csw)).max() > 0.1


def test_odd_sizes_are_the_textbooks_too() -> None:
    shape = (1, 3, 2, 3)
    links, psi = lattice.random_links(shape, seed=1), spinor(shape)
    one = lattice.Clover(links, mass=0.3, csw=1.2, boundary=ANTIPERIODIC)
    expected = textbook.clover(textbook.Field(links, ANTIPERIODIC), psi, 0.3, 1.2)
    assert np.abs(one.apply(psi) - expected).max() <= 1e-14 * np.abs(expected).max()


def test_without_its_term_it_is_wilsons_and_gamma_5_makes_it_hermitian() -> None:
    psi, phi = spinor(seed=1), spinor(seed=2)
    bare, wilson = lattice.Clover(LINKS, mass=0.1, csw=0.0), lattice.Wilson(LINKS, mass=0.1)
    assert np.abs(bare.apply(psi) - wilson.apply(psi)).max() < 1e-14
    one = lattice.Clover(LINKS, mass=0.1, csw=1.3)
    gamma_5 = np.array([1.0, 1, -1, -1])[:, None]
    assert np.vdot(phi, gamma_5 * one.apply(psi)) == pytest.approx(
        np.vdot(gamma_5 * one.apply(phi), psi), rel=1e-12
    )
    assert np.vdot(phi, one.apply(psi)) == pytest.approx(np.vdot(one.apply_adjoint(phi), psi), rel=1e-12)


def test_a_change_of_gauge_changes_the_spinor_and_nothing_else() -> None:
    psi, g = spinor(), lattice.random_links(SHAPE, seed=5)[0]
    turned = np.stack([g @ LINKS[mu] @ np.roll(g, -1, 3 - mu).conj().swapaxes(-1, -2) for mu in range(4)])
    turn = lambda v: np.einsum("...ij,...sj->...si", g, v)  # noqa: E731
    there = lattice.Clover(lattice.project(turned), mass=0.1, csw=1.5).apply(turn(psi))
    assert np.abs(there - turn(lattice.Clover(LINKS, mass=0.1, csw=1.5).apply(psi))).max() < 1e-12


def test_the_term_takes_the_error_of_first_order_of_a_constant_field_away() -> None:
    """M^+ M psi = (D^2 + ...) psi: with csw = 1 the lowest mode of a weak field lies far closer to zero."""
    size = 8
    links = lattice.unit_links((2, 2, size, size))
    angle = 2 * np.pi / size**2  # one unit of flux through every plane of x and y, in a diagonal subgroup
    x, y = np.arange(size), np.arange(size)
    charges = np.array([1.0, -1, 0])
    in_y = np.exp(1j * angle * x[:, None] * charges)  # (x, colour)
    in_x = np.exp(-1j * angle * size * y[:, None] * charges)  # (y, colour), at the last x
    links[1] = np.eye(3) * in_y[None, None, None, :, :, None]
    links[0, :, :, :, -1] = np.eye(3) * in_x[None, None, :, :, None]
    lowest = {}
    for csw in (-1.0, 0.0, 1.0):
        one = lattice.Clover(links, mass=0.0, csw=csw)
        v = spinor((2, 2, size, size))
        v[..., 2] = 0  # the colour without charge does not see the field
        shifted, gamma_5 = lattice.Clover(links, mass=0.02, csw=csw), np.array([1.0, 1, -1, -1])[:, None]
        for _ in range(2):  # inverse iteration
            for _ in range(2):
                v = shifted.solve(gamma_5 * v, rtol=1e-4, precision="double").x
            v /= np.linalg.norm(v)
        lowest[csw] = np.linalg.norm(one.apply(v))
    assert lowest[1.0] < 0.3 * lowest[0.0] < 0.3 * lowest[-1.0]


@pytest.mark.parametrize("dtype", ["float64", "float32", "int16", "int8"])
def test_blocks_are_72_numbers_of_a_site_with_a_norm_for_each_block(dtype: str) -> None:
    matrices = clover_blocks(LINKS, 1.1, 4.0)
    assert np.abs(matrices - matrices.conj().swapaxes(-1, -2)).max() < 1e-14
    packed = Blocks.packed(matrices, dtype)
    each = np.dtype(dtype).itemsize
    nbytes = packed.values.nbytes + (0 if packed.norms is None else packed.norms.nbytes)
    assert nbytes == 64 * (72 * each + (8 if dtype.startswith("int") else 0))
    numbers, norms = natural(packed.values.reshape(4, 72, 16), SHAPE), None
    if packed.norms is not None:
        norms = natural(packed.norms, SHAPE)
    psi = spinor().view(np.float64).reshape(*SHAPE, 24)
    psi = psi.astype(np.float64 if dtype == "float64" else np.float32)
    found = definition.multiply(numbers.reshape(*SHAPE, 2, 36), norms, psi)
    full = np.einsum("tzyxcij,tzyxcj->tzyxci", matrices, spinor().reshape(*SHAPE, 2, 6))
    expected = np.ascontiguousarray(full).view(np.float64).reshape(*SHAPE, 24)
    bound = {"float64": 1e-14, "float32": 2e-6, "int16": 4e-4, "int8": 0.1}[dtype] * np.abs(expected).max()
    assert np.abs(found - expected).max() < bound


@pytest.mark.parametrize("even_odd", [False, True])
@pytest.mark.parametrize("reconstruct", [18, 12])
def test_narrow_solvers_reach_what_double_reaches(even_odd: bool, reconstruct: int) -> None:
    one = lattice.Clover(SMOOTH, mass=-0.1, csw=1.0, reconstruct=reconstruct)
    b, field = spinor(SMOOTH.shape[1:5]), textbook.Field(SMOOTH)
    double = one.solve(b, precision="double", even_odd=even_odd)
    for precision, share in (("single", 1.05), ("half", 1.2), ("quarter", 1.7)):
        found = one.solve(b, precision=precision, even_odd=even_odd)
        assert found.converged
        assert found.path == (precision,)
        assert found.iterations <= share * double.iterations
        if precision == "half":
            rest = b - textbook.clover(field, found.x, -0.1, 1.0)
            assert np.linalg.norm(rest) <= 1.0001e-10 * np.linalg.norm(b)
            careless = one.solve(b, precision="half", even_odd=even_odd, delta=None)
            assert careless.claimed <= 1e-10
            assert not careless.converged


def test_even_sites_give_the_solution_of_all() -> None:
    one, b = lattice.Clover(SMOOTH, mass=-0.1, csw=1.4, boundary=ANTIPERIODIC), spinor((4, 4, 4, 4))
    whole = one.solve(b, precision="double", rtol=1e-12)
    found = one.solve(b, precision="double", even_odd=True, rtol=1e-12)
    assert found.converged
    assert np.abs(found.x - whole.x).max() < 1e-9
    assert 1.5 * found.iterations <= whole.iterations
    expected = textbook.clover(textbook.Field(SMOOTH, ANTIPERIODIC), found.x, -0.1, 1.4)
    assert np.linalg.norm(b - expected) <= 1.01e-12 * np.linalg.norm(b)


@pytest.mark.parametrize("kind", ["wilson", "clover"])
@pytest.mark.parametrize("even_odd", [False, True])
def test_bicgstab_solves_the_operator_itself(kind: str, even_odd: bool) -> None:
    csw = 1.0 if kind == "clover" else 0.0
    one = (
        lattice.Clover(SMOOTH, mass=0.1, boundary=ANTIPERIODIC)
        if kind == "clover"
        else lattice.Wilson(SMOOTH, mass=0.1, boundary=ANTIPERIODIC)
    )
    b, field = spinor((4, 4, 4, 4)), textbook.Field(SMOOTH, ANTIPERIODIC)
    squared = one.solve(b, precision="double", even_odd=even_odd)
    double = one.solve(b, precision="double", even_odd=even_odd, method="bicgstab")
    assert double.stages[0].method == "bicgstab"
    assert double.iterations < squared.iterations
    seen: list[Any] = []
    found = one.solve(
        b, precision="half", even_odd=even_odd, method="bicgstab", callback=lambda x: seen.append(x.shape)
    )
    assert found.converged
    assert found.iterations <= 1.2 * double.iterations
    assert seen == [b.shape] * found.iterations
    rest = b - textbook.clover(field, found.x, 0.1, csw)
    assert np.linalg.norm(rest) <= 1.0001e-10 * np.linalg.norm(b)
    careless = one.solve(b, precision="half", even_odd=even_odd, method="bicgstab", delta=None, maxiter=100)
    assert not careless.converged


def test_bicgstab_gives_what_a_dense_solution_gives() -> None:
    shape = (2, 2, 2, 2)
    links, b = lattice.random_links(shape, seed=1), spinor(shape)
    field = textbook.Field(links)
    dense = textbook.matrix(lambda v: textbook.clover(field, v, 0.5, 0.8), b.shape)
    expected = np.linalg.solve(dense, b.reshape(-1)).reshape(b.shape)
    one = lattice.Clover(links, mass=0.5, csw=0.8)
    for precision in ("double", "half"):
        found = one.solve(b, precision=precision, method="bicgstab", rtol=1e-12)
        assert np.abs(found.x - expected).max() < 1e-10
        again = one.solve(b, found.x, precision=precision, method="bicgstab", rtol=1e-10)
        assert again.iterations == 0


def test_bad_input_is_refused() -> None:
    with pytest.raises(ArgumentError, match="csw=nan"):
        lattice.Clover(LINKS, mass=0.1, csw=np.nan)
    one = lattice.Clover(LINKS, mass=0.1)
    with pytest.raises(ArgumentError, match="method='gmres'; expected cg or bicgstab"):
        one.solve(spinor(), method="gmres")
    with pytest.raises(ArgumentError, match="deflation= is for method='cg'"):
        one.solve(spinor(), method="bicgstab", deflation=lattice.RitzVectors(2))
    shape = (4, 4, 4, 4)
    with pytest.raises(DataError, match="a block of the clover term is singular"):
        lattice.Clover(lattice.unit_links(shape), mass=-4.0).solve(spinor(shape), even_odd=True)
