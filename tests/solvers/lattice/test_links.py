"""Gauge fields: what is made is in SU(3), and what is not is refused."""

from typing import Any

import numpy as np
import pytest
import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers import lattice

SHAPE = (2, 4, 2, 6)


@pytest.mark.parametrize(
    "links", [lattice.unit_links(SHAPE), lattice.random_links(SHAPE), lattice.smooth_links(SHAPE)]
)
def test_what_is_made_is_in_su3(links: Any) -> None:
    assert links.shape == (4, *SHAPE, 3, 3)
    assert np.abs(links @ links.conj().swapaxes(-1, -2) - np.eye(3)).max() < 1e-14
    assert np.abs(np.linalg.det(links) - 1).max() < 1e-14
    lattice.Wilson(links, mass=0.1)


def test_a_seed_gives_the_same_field_and_roughness_its_distance_from_one() -> None:
    assert np.array_equal(lattice.random_links(SHAPE, 3), lattice.random_links(SHAPE, 3))
    assert not np.array_equal(lattice.random_links(SHAPE, 3), lattice.random_links(SHAPE, 4))
    one = lattice.unit_links(SHAPE)
    assert np.array_equal(lattice.smooth_links(SHAPE, 0), one)
    near, far = (np.abs(lattice.smooth_links(SHAPE, r) - one).mean() for r in (0.01, 0.1))
    assert 5 < far / near < 12


def test_haar_links_have_no_preferred_trace() -> None:
    trace = np.trace(lattice.random_links((4, 4, 4, 8)), axis1=-2, axis2=-1)
    assert abs(trace.mean()) < 0.06  # 2048 links of |tr|^2 = 1
    assert (np.abs(trace) ** 2).mean() == pytest.approx(1, abs=0.1)


def off(change: float) -> Any:
    links = lattice.random_links(SHAPE)
    links[0, 0, 0, 0, 0] *= change
    return links


def flipped(count: int) -> Any:
    """Return links of which so many have the sign of an antiperiodic boundary."""
    links = lattice.random_links(SHAPE)
    links.reshape(-1, 3, 3)[:count] *= -1
    return links


@pytest.mark.parametrize(
    ("links", "options", "error", "said"),
    [
        (off(1.001), {}, ArgumentError, r"off SU\(3\) by 3.0e-03.*lattice.project"),
        (off(1j), {}, ArgumentError, r"off SU\(3\) by"),
        (off(np.nan), {}, DataError, "links hold NaN"),
        (-lattice.random_links(SHAPE), {}, ArgumentError, r"determinant -1.*boundary=\(-1, 1, 1, 1\)"),
        (flipped(37), {}, ArgumentError, "^37 links have the determinant -1"),
        (lattice.random_links(SHAPE)[:, :0], {}, ArgumentError, "four sizes"),
        (lattice.unit_links(SHAPE), {"boundary": (1, 1, 1)}, ArgumentError, "along T, Z, Y and X"),
        (lattice.unit_links(SHAPE), {"boundary": (0, 1, 1, 1)}, ArgumentError, "along T, Z, Y and X"),
        (
            lattice.unit_links(SHAPE),
            {"boundary": (-1, 1, 1, 1), "reconstruct": 12},
            ArgumentError,
            "take 18",
        ),
        (np.zeros((3, *SHAPE, 3, 3)), {}, ArgumentError, r"expected a complex array of shape \(4, T"),
        ("links", {}, ArgumentError, "links are str"),
        (lattice.unit_links(SHAPE), {"reconstruct": 9}, ArgumentError, "reconstruct=9; expected 18, 12 or 8"),
        (lattice.unit_links(SHAPE).astype(object), {}, ArgumentError, r"links are object \(4, 2, 4"),
        (lattice.unit_links(SHAPE).astype(str), {}, ArgumentError, "links are <U64"),
        (lattice.unit_links(SHAPE), {"mass": np.nan}, ArgumentError, "mass=nan"),
        (lattice.unit_links(SHAPE), {"mass": 1e155}, ArgumentError, "mass=1e.155; expected 1e.140 at most"),
        (lattice.unit_links(SHAPE), {"mass": 1j}, ArgumentError, "mass=1j; expected a finite real number"),
        (lattice.unit_links(SHAPE), {"mass": "1"}, ArgumentError, "mass='1'; expected a finite real number"),
        (lattice.unit_links(SHAPE), {"mass": None}, ArgumentError, "mass=None"),
        (lattice.unit_links(SHAPE), {"mass": np.complex128(0.1)}, ArgumentError, "expected a finite real"),
        (np.ma.masked_array(lattice.unit_links(SHAPE)), {}, ArgumentError, "a gauge field is a masked array"),
    ],
)
def test_bad_input_is_refused(links: Any, options: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        lattice.Wilson(links, **{"mass": 0.1, **options})


@pytest.mark.parametrize("kind", [lattice.Wilson, lattice.Clover, lattice.Staggered])
def test_a_mass_of_any_real_type_is_the_same_number(kind: Any) -> None:
    links = lattice.random_links(SHAPE)
    psi = np.ones((*SHAPE, 3) if kind is lattice.Staggered else (*SHAPE, 4, 3), complex)
    expected = kind(links, mass=0.25).apply(psi)
    for mass in (np.float16(0.25), np.array(0.25)):
        assert np.array_equal(kind(links, mass=mass).apply(psi), expected)
    for mass in (1j, "1", None, 10**400):
        with pytest.raises(ArgumentError, match="expected a finite real number"):
            kind(links, mass=mass)


@pytest.mark.parametrize("kind", [lattice.Wilson, lattice.Clover, lattice.Staggered])
@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("split", [2, None, "1111", (1, 1, 1.0, 1), (1, 1, 1, None), (True,) * 4, (1, 1, 1)]),
        ("boundary", [2, None, "1111", (1, 1, 1, None), (1, 1, 1, np.ones(2)), (1, 1, 1, 1 + 0j)]),
        ("reconstruct", ["12", 12.0, [12], np.array([12, 8]), True, 10]),
        ("mass", [10**400, 1e308, -1e200]),
    ],
)
def test_what_is_no_setting_is_refused_by_name(kind: Any, option: str, wrong: list[Any]) -> None:
    for value in wrong:
        with pytest.raises(ArgumentError, match=rf"^{option}=(?s:.*); expected"):
            kind(lattice.unit_links(SHAPE), **{"mass": 0.1, option: value})


@pytest.mark.parametrize("kind", [lattice.Wilson, lattice.Clover, lattice.Staggered])
def test_settings_may_be_arrays_and_tensors(kind: Any) -> None:
    links = lattice.random_links(SHAPE)
    psi = np.ones((*SHAPE, 3) if kind is lattice.Staggered else (*SHAPE, 4, 3), complex)
    expected = kind(links, mass=0.25, boundary=(-1, 1, 1, 1)).apply(psi)
    for made in (np.array, torch.tensor):
        given = kind(links, mass=0.25, boundary=made([-1, 1, 1, 1]), split=made([1, 1, 1, 1]))
        assert np.array_equal(given.apply(psi), expected)


@pytest.mark.parametrize("kind", [lattice.Wilson, lattice.Clover, lattice.Staggered])
@pytest.mark.parametrize("mass", [1e30, 1e140])
def test_the_heaviest_fermions_do_not_hop(kind: Any, mass: float) -> None:
    shape = (4, 4, 4, 4)
    psi = np.ones((*shape, 3) if kind is lattice.Staggered else (*shape, 4, 3), complex)
    one = kind(lattice.random_links(shape), mass=mass)
    assert np.abs(one.apply(psi) / mass - psi).max() < 1e-15
    for even_odd in (False, True):
        found = one.solve(psi, even_odd=even_odd)
        assert found.converged
        assert np.abs(found.x * mass - psi).max() < 1e-10


def test_a_coefficient_that_is_not_real_is_refused() -> None:
    for csw in (1j, 1 + 0j, "1", None, np.inf, 1e200):
        with pytest.raises(ArgumentError, match=r"csw=.*expected (a finite real number|1e.140)"):
            lattice.Clover(lattice.unit_links(SHAPE), mass=0.1, csw=csw)


def test_masks_are_not_ignored() -> None:
    links = lattice.random_links(SHAPE)
    for kind, shape in ((lattice.Wilson, (*SHAPE, 4, 3)), (lattice.Staggered, (*SHAPE, 3))):
        psi: Any = np.ma.masked_array(np.ones(shape, complex), np.arange(np.prod(shape)) % 2 == 0)
        one: Any = kind(links, mass=0.1)
        for call in (one.apply, one.apply_adjoint, one.solve):
            with pytest.raises(ArgumentError, match="field is a masked array"):
                call(psi)
    with pytest.raises(ArgumentError, match="an array of matrices is a masked array"):
        lattice.project(np.ma.masked_array(np.eye(3)))


def test_empty_shapes_negative_roughness_and_nan_are_refused_where_fields_are_made() -> None:
    for make in (lattice.unit_links, lattice.random_links, lattice.smooth_links):
        wrong: Any
        for wrong in ((4, 4, 0, 4), 4, None, "4444", (4, 4, 4, 4.0), (4, 4, 4, None), (True,) * 4):
            with pytest.raises(ArgumentError, match="four sizes"):
                make(wrong)
    for seeded in (lattice.random_links, lattice.smooth_links):
        for wrong in (-1, 1.5, "a"):
            with pytest.raises(ArgumentError, match=rf"seed={wrong!r}; expected a whole number"):
                seeded(SHAPE, seed=wrong)
    with pytest.raises(ArgumentError, match="roughness=-1"):
        lattice.smooth_links(SHAPE, -1)
    for wrong in (1j, np.inf, 10**400):
        with pytest.raises(ArgumentError, match=f"roughness={wrong}"):
            lattice.smooth_links(SHAPE, wrong)
    with pytest.raises(DataError, match="NaN"):
        lattice.project(np.full((3, 3), np.nan))


def test_a_link_that_eight_numbers_do_not_determine_is_refused_for_eight_only() -> None:
    links = lattice.unit_links(SHAPE)
    links[2, 1, 0, 1, 0] = [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
    lattice.Wilson(links, mass=0.1, reconstruct=12)
    with pytest.raises(ArgumentError, match="take reconstruct=12"):
        lattice.Wilson(links, mass=0.1, reconstruct=8)


def test_projection_gives_back_what_was_off_by_rounding() -> None:
    links = lattice.random_links(SHAPE)
    rounded = links.astype(np.complex64)
    assert np.abs(lattice.project(rounded.astype(np.complex128)) - links).max() < 1e-6
    lattice.Wilson(lattice.project(rounded.astype(np.complex128)), mass=0.1)


@pytest.mark.parametrize("change", ["single", "half", "integers", "far", "nearly parallel", "noise"])
def test_what_is_projected_is_taken(change: str) -> None:
    links = lattice.random_links(SHAPE, 7)
    given: Any = {
        "single": links.astype(np.complex64),
        "half": links.real.astype(np.float16) + 1j * links.imag.astype(np.float16),
        "integers": np.rint(50 * links.real).astype(np.int64) + np.eye(3, dtype=np.int64),
        "far": 1e-200 * links,
        "nearly parallel": links + 0,
        "noise": links + 0.1 * np.random.default_rng(0).standard_normal(links.shape),
    }[change]
    if change == "nearly parallel":
        given[..., 1, :] = given[..., 0, :] * (1 + 2j) + 1e-9 * given[..., 1, :]
    lattice.Wilson(lattice.project(given), mass=0.1)


def test_what_determines_no_matrix_of_su3_is_refused() -> None:
    for matrix in (np.zeros((3, 3)), np.ones((3, 3))):
        with pytest.raises(DataError, match="zero or parallel"):
            lattice.project(matrix)
    other: Any
    for other in (np.eye(2), "links", [1.0], [[1, 2], [3]], np.eye(3, dtype=object)):
        with pytest.raises(ArgumentError, match=r"expected numbers, \(..., 3, 3\)"):
            lattice.project(other)
