"""Never less accurate than LAPACK's GESV: on a collection of matrices, judged in extended precision."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fewbits.solvers import factorize
from fewbits.solvers.dense import lu, plan, system
from fewbits.solvers.dense import refinement as refine
from tests.solvers.collection import KINDS, Comparison, compared, files, matrices, right_sides
from tests.solvers.systems import EPS


def comparisons(
    n: int, precision: str = "auto", sides: tuple[str, ...] = ("random", "known", "unit")
) -> list[Comparison]:
    """Return the comparisons of the whole collection at about n unknowns."""
    found = []
    for kind, name, a in matrices(n):
        for side, b in right_sides(a).items():
            if side in sides and np.isfinite(b).all():
                found.append(compared(kind, name, a, side, b, precision))
    return [one for one in found if one is not None]


def unsound(found: list[Comparison]) -> list[str]:
    return [f"{one.name}, {one.side}: {one.ratio:.0f} times by {one.path}" for one in found if not one.sound]


def needlessly_double(found: list[Comparison]) -> list[str]:
    """Name the matrices that are hard by their scales alone, and were left to double precision."""
    scaled = ("rows scaled", "columns scaled", "rows and columns scaled", "mixed units", "huge and tiny")
    return [one.name for one in found if one.kind in scaled and "fp64" in one.path]


def from_here(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """Have ``auto`` try float32 from n unknowns on."""
    monkeypatch.setattr(plan, "BEFORE_DOUBLE", {n: ("fp32",)})


@pytest.mark.parametrize("least", [64, 1000])
def test_no_matrix_of_any_kind_is_solved_less_accurately_than_by_lapack(
    least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(KINDS) >= 20
    from_here(monkeypatch, least)
    found = comparisons(100)
    assert unsound(found) == []
    narrow = [one for one in found if "fp32:-" not in one.path and "fp32" in one.path]
    assert (len(narrow) > len(found) / 3) == (least == 64)
    assert needlessly_double(found) == [] or least == 1000


def test_own_factors_in_double_precision_are_no_less_accurate_than_lapacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called = []
    monkeypatch.setattr(lu, "OWN_FROM", 0)
    monkeypatch.setattr(lu, "_in_place", lambda a, own=lu._in_place: called.append(a.dtype) or own(a))
    assert unsound(comparisons(100, "fp64")) == []
    assert set(called) == {torch.float64}


def test_without_equilibration_scales_alone_defeat_narrow_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: narrow factors then serve few of these matrices, or none."""
    from_here(monkeypatch, 64)
    monkeypatch.setattr(system.Extents, "mild", True)
    assert len(needlessly_double(comparisons(80, sides=("random",)))) > 1


def test_with_the_normwise_criterion_alone_some_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: DSGESV's max |r| <= sqrt(n) |A| max |x| 2^-53 says nothing where scales differ."""
    from_here(monkeypatch, 64)
    monkeypatch.setattr(system.Extents, "mild", True)
    whole = system.System.state

    def normwise(self: system.System, x: torch.Tensor, b: torch.Tensor) -> system.State:
        found = whole(self, x, b)
        sizes = found.residual.abs().amax(0) / (self.norm * x.abs().amax(0) * len(x) ** 0.5)
        return system.State(x, found.residual, sizes, sizes)

    monkeypatch.setattr(system.System, "state", normwise)
    assert len(unsound(comparisons(80, sides=("random",)))) > 5


def test_errors_of_more_than_a_rounding_are_refined_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the yardstick: a solution that is left a little too early shows."""
    from_here(monkeypatch, 64)
    monkeypatch.setattr(refine, "EPS", 2.0**-44)
    assert unsound(comparisons(80, sides=("random",)))


@pytest.mark.parametrize("precision", ["auto", "fp64", "bf16x2"])
def test_what_is_reported_is_what_an_independent_judge_finds(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_here(monkeypatch, 64)
    for kind, name, a in matrices(70):
        if kind in ("singular", "huge and tiny", "Pascal", "Hilbert", "Vandermonde", "condition 1e+14"):
            continue
        wide = a.astype(np.longdouble)
        x = np.random.default_rng(1).integers(1, 9, len(a)).astype(float)
        b = (wide @ x).astype(float)
        found: Any = factorize(a, precision).solve(b)
        r = np.abs(b - wide @ found.x.astype(np.longdouble))
        sizes = np.abs(wide) @ np.abs(found.x) + np.abs(b)
        normwise = r.max() / (np.abs(wide).sum(1).max() * np.abs(found.x).max() + np.abs(b).max())
        assert found.componentwise_error == pytest.approx(
            float((r / sizes).max()), rel=0.05, abs=1e-3 * EPS
        ), name
        assert found.backward_error == pytest.approx(float(normwise), rel=0.05, abs=1e-3 * EPS), name
        # What rounding b once changes is no error of the solution.
        exact = np.abs(np.linalg.inv(a)) @ (np.abs(b) * EPS)
        error = np.abs(found.x - x).max() - exact.max()
        assert error <= 3 * found.forward_error * np.abs(x).max(), name
        if kind in ("random", "diagonally dominant", "orthogonal"):
            assert found.forward_error <= len(a) * EPS * found.condition, name


@pytest.mark.slow
@pytest.mark.parametrize("n", [320, 1190, 1210])
def test_no_larger_matrix_is(n: int) -> None:
    assert unsound(comparisons(n)) == []


@pytest.mark.slow
def test_no_matrix_from_practice_is(shared_data: Path) -> None:
    for kind, name, a in files(shared_data):
        for side, b in right_sides(a).items():
            found = compared(kind, name, a, side, b)
            assert found is not None
            assert found.sound, found
