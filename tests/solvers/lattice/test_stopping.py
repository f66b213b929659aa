"""When solvers of the lattice stop: right-hand sides of zero, absolute tolerances, bounds on iterations."""

from typing import Any

import numpy as np
import pytest

from fewbits.errors import DataError
from fewbits.solvers import lattice

SHAPE = (4, 4, 4, 4)
LINKS = lattice.smooth_links(SHAPE, 0.4, seed=2)
KINDS: dict[str, Any] = {
    "wilson": lattice.Wilson,
    "clover": lattice.Clover,
    "staggered": lattice.Staggered,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "wilson": ("wilson", {}),
    "wilson even": ("wilson", {"even_odd": True}),
    "wilson bicgstab": ("wilson", {"method": "bicgstab"}),
    "clover even bicgstab": ("clover", {"method": "bicgstab", "even_odd": True}),
    "staggered": ("staggered", {}),
    "staggered even": ("staggered", {"even_odd": True}),
}
OF_ANY_SIZE = [case for case in CASES if case.startswith("staggered") or "even" not in case]


def field(kind: str, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> Any:
    generator = np.random.default_rng(seed)
    whole = (*shape, 3) if kind == "staggered" else (*shape, 4, 3)
    return generator.standard_normal(whole) + 1j * generator.standard_normal(whole)


@pytest.mark.parametrize("case", CASES)
def test_zeros_give_zeros_whatever_the_start(case: str) -> None:
    kind, options = CASES[case]
    one, start = KINDS[kind](LINKS, mass=0.3), field(kind)
    for size in (1.0, 1e-11):
        found = one.solve(0 * start, size * start, **options)
        assert found.converged
        assert not found.x.any()
        assert (found.iterations, found.residual) == (0, 0.0)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("error")
def test_a_start_whose_residual_overflows_is_left(case: str) -> None:
    kind, options = CASES[case]
    one, b = KINDS[kind](LINKS, mass=0.3), field(kind)
    found = one.solve(b, 1e250 * b, rtol=1e-6, **options)
    assert found.converged
    assert np.linalg.norm(b - one.apply(found.x)) <= 1.01e-6 * np.linalg.norm(b)


@pytest.mark.skipif(np.finfo(np.longdouble).max <= 1e308, reason="long double is double here")
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_beyond_double_precision_are_refused(kind: str) -> None:
    one, b = KINDS[kind](LINKS, mass=0.3), field(kind)
    with pytest.raises(DataError, match="NaN or infinity in double precision"):
        one.solve(b.astype(np.clongdouble) * np.longdouble("1e400"))


@pytest.mark.parametrize("case", CASES)
def test_a_solution_beyond_the_largest_number_is_no_solution(case: str) -> None:
    kind, options = CASES[case]
    one = KINDS[kind](lattice.unit_links(SHAPE), mass=0.05)
    constant = np.full_like(field(kind), 1.5e308)  # M times it is 0.05 times it
    with pytest.raises(DataError, match="beyond the largest float64"):
        one.solve(constant, **options)


@pytest.mark.parametrize("size", [1e-320, 1e-315, 1e-310])
@pytest.mark.parametrize("case", CASES)
def test_what_is_said_of_x_holds_of_the_x_that_is_returned(case: str, size: float) -> None:
    """Below the normal numbers x keeps few digits; powers of two bring it where products are exact enough."""
    kind, options = CASES[case]
    one, b = KINDS[kind](LINKS, mass=0.3), size * field(kind)
    found = one.solve(b, precision="double", **options)
    near, x = (np.ldexp(v.view(float), 1000).view(complex) for v in (b, np.ascontiguousarray(found.x)))
    true = np.linalg.norm(near - one.apply(x)) / np.linalg.norm(near)
    assert found.residual == pytest.approx(true, rel=1e-3)
    assert found.converged == (true <= 1e-10)


def test_ritz_vectors_serve_after_a_right_hand_side_of_zeros() -> None:
    one, vectors, b = lattice.Wilson(LINKS, mass=0.3), lattice.RitzVectors(2), field("wilson")
    assert not one.solve(0 * b, even_odd=True, deflation=vectors).x.any()
    assert one.solve(b, even_odd=True, deflation=vectors).converged


@pytest.mark.parametrize("case", OF_ANY_SIZE)
def test_an_absolute_tolerance_is_for_the_lattice_given_and_not_for_its_copies(case: str) -> None:
    kind, options = CASES[case]
    shape = (2, 2, 2, 2) if kind == "staggered" else (3, 2, 1, 3)
    copies = (2, 2, 2, 2) if kind == "staggered" else (2, 1, 2, 2)
    links, b = lattice.smooth_links(shape, 0.4, seed=1), field(kind, shape)
    tiled = np.tile(links, (1, *copies, 1, 1))
    small, large = KINDS[kind](links, mass=0.3), KINDS[kind](tiled, mass=0.3)
    right = np.tile(b, copies + (1,) * (b.ndim - 4))
    # The same system written out: its vectors are longer by the square root of the number of copies.
    for share in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5):
        atol = share * np.linalg.norm(b)
        found = small.solve(b, rtol=0.0, atol=atol, precision="double", **options)
        same = large.solve(right, rtol=0.0, atol=np.prod(copies) ** 0.5 * atol, precision="double", **options)
        assert found.converged
        assert found.iterations == same.iterations > 0
        assert np.linalg.norm(b - small.apply(found.x)) <= atol
        assert np.abs(found.x - same.x[tuple(slice(n) for n in shape)]).max() < 1e-12
    if not options:
        assert small.solve(b, rtol=0.0, atol=1.01 * np.linalg.norm(b)).iterations == 0


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("atol", [1e10, 1e308])
def test_an_absolute_tolerance_far_above_is_met_at_once(case: str, atol: float) -> None:
    kind, options = CASES[case]
    found = KINDS[kind](LINKS, mass=30.0).solve(1e-300 * field(kind), atol=atol, **options)
    assert found.converged
    assert found.iterations == 0
    if "even_odd" not in options:
        assert not found.x.any()


@pytest.mark.parametrize("case", CASES)
def test_iterations_of_all_precisions_together_are_bounded(case: str) -> None:
    kind, options = CASES[case]
    one, b, seen = KINDS[kind](LINKS, mass=0.1), field(kind), list[tuple[str, int, float]]()
    assert one.solve(b, maxiter=3, **options).iterations == 3
    alone = one.solve(b, delta=None, precision="half", **options)
    assert not alone.converged
    found = one.solve(
        b,
        delta=None,
        maxiter=alone.iterations + 2,
        watch=lambda *told: seen.append(told),
        **options,
    )
    assert found.path == ("half", "double")
    assert found.iterations == alone.iterations + 2
    assert [i for _, i, _ in seen] == list(range(1, found.iterations + 1))
    assert [precision for precision, _, _ in seen[-3:]] == ["half", "double", "double"]
    assert sum(len(stage.history) for stage in found.stages) == len(found.history) == found.iterations
    again = one.solve(b, delta=None, **options)  # and without a bound, double precision brings it about
    assert again.converged
    assert again.path == ("half", "double")
    assert np.linalg.norm(b - one.apply(again.x)) <= 1.0001e-10 * np.linalg.norm(b)
