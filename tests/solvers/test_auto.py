"""What ``auto`` tries, what it leaves alone, and that neither costs accuracy."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from scipy import linalg

from fewbits.solvers import factorize, solve
from fewbits.solvers.dense import condition_probe, plan, prepared_matrix, system
from fewbits.solvers.precision import roundoff
from tests.solvers.systems import EPS, N, checked, randsvd


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "BEFORE_DOUBLE", {64: ("fp32",)})


def test_few_unknowns_are_solved_in_double() -> None:
    assert [p.name for p in plan.precisions("auto", 63)] == ["fp64"]
    assert [p.name for p in plan.precisions("auto", 64)] == ["fp32", "fp64"]


def test_matrix_units_bring_bfloat16_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "has_tiles", lambda: True)
    assert [p.name for p in plan.precisions("auto", 4000)] == ["bf16", "bf16x2", "fp32", "fp64"]
    assert [p.name for p in plan.precisions("auto", 3999)] == ["bf16", "fp32", "fp64"]
    assert [p.name for p in plan.precisions("auto", 2999)] == ["fp32", "fp64"]
    monkeypatch.setattr(plan, "BEFORE_DOUBLE_WITH_TILES", {64: ("bf16x2", "fp32")})
    assert [s.precision for s in checked(randsvd(1e2, 3)).stages] == ["bf16x2"]
    stages = checked(randsvd(1e5, 3)).stages
    assert [s.precision for s in stages] == ["bf16x2", "fp32"]
    assert stages[0].code < 0 < stages[1].code


def test_formats_with_the_range_of_float32_are_not_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy in float32 that is made while the magnitudes are read is factorized, also by a second step."""
    monkeypatch.setattr(plan, "has_tiles", lambda: True)
    monkeypatch.setattr(plan, "BEFORE_DOUBLE_WITH_TILES", {64: ("bf16", "bf16x2", "fp32")})
    made = []
    real = prepared_matrix.to_single
    monkeypatch.setattr(
        prepared_matrix,
        "to_single",
        lambda a, factor, scaled: made.append(scaled) or real(a, factor, scaled=scaled),
    )
    stages = checked(randsvd(1e4, 3)).stages
    assert [(s.precision, s.code < 0) for s in stages] == [("bf16", True), ("bf16x2", False)]
    assert made == []
    checked(randsvd(1e2, 3), "bf16x3")
    checked(randsvd(1e2, 3), "fp16")
    assert made == [True]


@pytest.mark.parametrize("mode", [3, 5])
@pytest.mark.parametrize("condition", [1e10, 1e13, 1e16])
def test_what_float32_cannot_do_is_refused_before_it_is_factorized(condition: float, mode: int) -> None:
    assert [s.code for s in checked(randsvd(condition, mode)).stages] == [-1, 0]


def test_a_copy_in_float32_is_made_only_of_what_float32_factorizes(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[bool] = []
    extents = system.extents

    def watched(a: torch.Tensor, *, single: bool = False, **others: Any) -> system.Extents:
        copied.append(single)
        return extents(a, single=single, **others)

    monkeypatch.setattr(system, "extents", watched)
    for condition, factorized in ((1e2, True), (1e10, False)):
        copied.clear()
        solve(randsvd(condition, 3), np.ones(N))
        assert copied[0] == factorized


def test_smooth_kernels_are_refused_and_regular_ones_are_not() -> None:
    assert checked(linalg.hilbert(N)).stages[0].code == -1
    points = np.random.default_rng(0).random((N, 3))
    distance = np.linalg.norm(points[:, None] - points, axis=2)
    assert not checked(np.exp(-distance / 0.1) + 1e-2 * np.eye(N)).fell_back


def test_a_part_tells_what_each_precision_can_do() -> None:
    n = 1000
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(n, n, generator=generator, dtype=torch.float64)
    dominant = normal + 4 * n**0.5 * torch.eye(n, dtype=torch.float64)
    distance = torch.cdist(*2 * [torch.rand(n, 3, generator=generator, dtype=torch.float64)])
    kernel = torch.exp(-distance.square() / 0.2)
    saddle = normal.clone()
    saddle[: n // 2, : n // 2] = 0
    expected = (
        (dominant, {"bf16x2", "fp32"}),
        (torch.from_numpy(randsvd(1e4, 3, n)), {"bf16x2", "fp32"}),
        (kernel + torch.eye(n), {"bf16x2", "fp32"}),
        (torch.from_numpy(randsvd(1e6, 3, n)), {"fp32"}),
        (torch.from_numpy(randsvd(1e9, 3, n)), set[str]()),
        (kernel, set[str]()),
        (saddle, {"bf16x2", "fp32"}),
    )
    for a, good in expected:
        pivots = condition_probe.sampled_pivots(a)
        assert {f for f in ("bf16x2", "fp32") if not condition_probe.doubt(pivots, n, roundoff(f))} == good


@pytest.mark.parametrize("condition", [1e8, 1e12, 1e15])
@pytest.mark.parametrize("mode", [2, 4])
def test_few_small_singular_values_cost_few_iterations(condition: float, mode: int) -> None:
    """They lie in directions that GMRES finds at once, if its preconditioner does not round."""
    found = checked(randsvd(condition, mode))
    assert not found.fell_back
    # Each round takes about three; how many rounds, the last bits of a residual decide.
    assert found.stages[0].inner <= 12


@pytest.mark.parametrize("axis", [0, 1])
def test_scales_of_rows_and_columns_do_not_count_as_conditions(axis: int) -> None:
    scales = np.logspace(-30, 30, N)
    a = np.random.default_rng(2).standard_normal((N, N)) * (scales if axis else scales[:, None])
    found = checked(a)
    assert [s.precision for s in found.stages] == ["fp32"]
    assert found.componentwise_error <= 2 * EPS
    assert found.condition < 1e8


def test_many_right_hand_sides_go_through_gmres_side_by_side() -> None:
    a = randsvd(1e8, 2)
    b = np.random.default_rng(0).standard_normal((N, 40))
    found: Any = factorize(a, "fp32").solve(b)
    assert not found.fell_back
    assert found.backward_error < N**0.5 * EPS
    assert found.stages[0].inner < 40


def test_refining_many_right_hand_sides_would_cost_more_than_it_saves() -> None:
    a = randsvd(1e2, 3)
    tried: list[Any] = [factorize(a).solve(np.ones((N, k))).stages for k in (1, 2)]
    assert [s[0].precision for s in tried] == ["fp32", "fp64"]


def test_complex_systems_take_the_same_ways() -> None:
    generator = np.random.default_rng(5)
    a = randsvd(1e3, 3) + 1j * randsvd(1e3, 3, seed=9)
    b = generator.standard_normal((N, 3)) + 1j * generator.standard_normal((N, 3))
    for precision in ("auto", "bf16x2", "fp16", "int8x3", "tf32"):
        found: Any = factorize(a, precision).solve(b)
        assert not found.fell_back
        assert found.backward_error < N**0.5 * EPS
        assert np.abs(b - a @ found.x).max() < 1e-12 * np.abs(found.x).max()


def test_singular_to_working_precision_is_a_warning() -> None:
    a = np.arange(9.0).reshape(3, 3) + 1
    with pytest.warns(
        RuntimeWarning, match=r"singular to working precision: its condition, .* is .* or more"
    ):
        solve(a, np.ones(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve(a + np.eye(3), np.ones(3))


def test_zeros_have_the_solution_zero() -> None:
    a = randsvd(1e2, 3)
    for precision in ("auto", "fp16", "dsgesv"):
        found: Any = factorize(a, precision).solve(np.zeros(N))
        assert not found.x.any()
        assert found.backward_error == 0


@pytest.mark.parametrize("size", [1e308, 1e-308])
def test_sums_beyond_double_precision_are_brought_within_it(size: float) -> None:
    a = size * (np.eye(100) + 0.5 * np.eye(100, k=1) + 0.5 * np.eye(100, k=2) + 0.5 * np.eye(100, k=-1))
    found: Any = factorize(torch.from_numpy(a)).solve(torch.full((100,), size, dtype=torch.float64))
    assert [s.precision for s in found.stages] == ["fp32"]
    assert found.componentwise_error <= 2 * EPS
    assert found.backward_error < 1e-15
    assert bool(torch.isfinite(found.x).all())
