"""Ritz vectors gathered over a sequence of right-hand sides: what they save, and what random ones do not."""

from typing import Any

import numpy as np
import pytest
import torch

from fewbits.errors import ArgumentError, FormatError
from fewbits.solvers import Deflation, lattice
from tests.solvers.lattice import textbook

SHAPE = (4, 4, 4, 4)
LINKS = lattice.smooth_links(SHAPE, 0.2, seed=2)
MASS = -0.15  # nearly singular: 24 eigenvalues of M^+ M lie below 0.01, the others above 0.4
CLOVER_MASS = -0.05  # as far from singular as 16 bits need where nothing is deflated yet


def fields(n: int, inner: tuple[int, ...] = (4, 3)) -> list[Any]:
    generator = np.random.default_rng(0)
    parts = generator.standard_normal((n, 2, *SHAPE, *inner))
    return list(parts[:, 0] + 1j * parts[:, 1])


@pytest.mark.parametrize("even_odd", [False, True])
@pytest.mark.parametrize("precision", ["double", "half"])
@pytest.mark.parametrize("kind", [lattice.Wilson, lattice.Clover])
def test_a_sequence_of_sources_takes_far_fewer_iterations(kind: Any, precision: str, even_odd: bool) -> None:
    mass = CLOVER_MASS if kind is lattice.Clover else MASS
    one, sources = kind(LINKS, mass=mass), fields(3)
    field, csw = textbook.Field(LINKS), 1.0 if kind is lattice.Clover else 0.0
    without = one.solve(sources[0], precision=precision, even_odd=even_odd).iterations
    vectors, taken = lattice.RitzVectors(24, solves=2), []
    for b in sources:
        found = one.solve(b, precision=precision, even_odd=even_odd, deflation=vectors)
        assert found.converged
        taken.append(found.iterations)
    rest = sources[-1] - textbook.clover(field, found.x, mass, csw)
    assert np.linalg.norm(rest) <= 1.0001e-10 * np.linalg.norm(sources[-1])
    assert taken[0] == without  # the first solve only gathers
    assert taken[-1] <= without / 2
    assert sum(taken) <= 2 / 3 * 3 * without
    assert vectors.solves == 0


def test_the_same_number_of_random_vectors_saves_nothing() -> None:
    one, b = lattice.Wilson(LINKS, mass=MASS), fields(1)[0]
    without = one.solve(b, precision="double").iterations
    modes = torch.randn(one.normal.n, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = one.solve(b, precision="double", deflation=Deflation(one.normal, modes))
    assert found.converged
    assert found.iterations > 0.9 * without


def test_ritz_vectors_are_near_eigenvectors_of_the_lowest_eigenvalues() -> None:
    one = lattice.Staggered(lattice.smooth_links(SHAPE, 0.3, seed=1), mass=0.02)
    vectors = lattice.RitzVectors(8, solves=2)
    for b in fields(2, (3,)):
        one.solve(b, precision="double", deflation=vectors, even_odd=True)
    assert vectors.deflation is not None
    normal = one.even_normal
    even = np.repeat(normal.domain.even, 6 * 16)
    unknowns = torch.eye(normal.n, dtype=torch.float64)[even]
    dense = np.stack([normal.exact(e).numpy() for e in unknowns], 1)[even]
    values, eigenvectors = np.linalg.eigh(dense)
    basis = np.linalg.qr(vectors.deflation.basis.numpy().astype(float).T[even])[0]
    share = np.linalg.norm(basis.T @ eigenvectors[:, :4], axis=0)  # two eigenvectors, and i times each
    assert values[3] < 0.5 * values[-1]
    assert share == pytest.approx([1] * 4, abs=1e-2)


@pytest.mark.parametrize("precision", ["double", "half"])
def test_staggered_sequences_take_fewer_too(precision: str) -> None:
    one, sources = lattice.Staggered(LINKS, mass=0.01), fields(3, (3,))
    without = one.solve(sources[0], precision=precision, even_odd=True).iterations
    vectors = lattice.RitzVectors(24, solves=2)
    taken = []
    for b in sources:
        found = one.solve(b, precision=precision, even_odd=True, deflation=vectors)
        rest = b - textbook.staggered(textbook.Field(LINKS), found.x, 0.01)
        assert np.linalg.norm(rest) <= 1.0001e-10 * np.linalg.norm(b)
        taken.append(found.iterations)
    assert taken[-1] <= 2 / 3 * without


def test_vectors_of_another_operator_and_impossible_numbers_are_refused() -> None:
    vectors = lattice.RitzVectors(2, solves=1)
    one, b = lattice.Wilson(LINKS, mass=0.3), fields(1)[0]
    one.solve(b, rtol=1e-3, deflation=vectors)
    with pytest.raises(ArgumentError, match="of another operator"):
        one.solve(b, deflation=vectors, even_odd=True)
    with pytest.raises(ArgumentError, match="of another operator"):
        lattice.Wilson(LINKS, mass=0.3).solve(b, deflation=vectors)
    modes = one.flat(b)[:, None]
    with pytest.raises(ArgumentError, match="modes of another operator"):
        one.solve(b, deflation=Deflation(lattice.Wilson(LINKS, mass=0.2).normal, modes))
    none: Any = modes
    for even_odd in (False, True):
        with pytest.raises(ArgumentError, match="deflation is a ndarray; expected RitzVectors, or"):
            one.solve(b, deflation=none, even_odd=even_odd)
    options: dict[str, Any]
    for options in (
        *({"count": 0}, {"count": 4, "window": 11}, {"solves": 0}),
        *({"count": 2.5}, {"count": 2, "window": 6.5}, {"solves": True}, {"count": None}),
    ):
        with pytest.raises(ArgumentError, match="expected at least 1"):
            lattice.RitzVectors(**options)
    with pytest.raises(FormatError, match="no format named 'float99'"):  # and not after the first solve
        lattice.RitzVectors(2, format="float99")


def test_what_16_bits_alone_do_not_solve_they_solve_deflated() -> None:
    one, sources = lattice.Clover(LINKS, mass=-0.16), fields(2)
    vectors = lattice.RitzVectors(24, solves=1)
    assert not one.solve(sources[0], precision="half", even_odd=True, deflation=vectors).converged
    assert one.solve(sources[1], precision="half", even_odd=True, deflation=vectors).converged
