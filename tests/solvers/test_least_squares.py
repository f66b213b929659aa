"""Least squares: as close to the solution as double precision comes."""

import time
import warnings
from fractions import Fraction
from operator import mul
from typing import Any

import numpy as np
import pytest
import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers import PRECISIONS, lstsq
from fewbits.solvers.dense import plan
from tests.cases import pairs
from tests.solvers.systems import Array, randsvd

N = 96


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "BEFORE_DOUBLE", {64: ("fp32",)})


def problem(condition: float, residual: float, seed: int = 0) -> tuple[Array, Array, Array]:
    """Return A, b and the exact solution: A is one matrix twice, and what is left of b is of both signs."""
    generator = np.random.default_rng(seed)
    step = 2.0**-30  # all sums below are exact
    half = np.round(randsvd(condition, 3, N) / step) * step
    x = generator.integers(-8, 9, N).astype(float)
    left = np.round(residual * generator.standard_normal(N) / step) * step
    return np.r_[half, half], np.r_[half @ x + left, half @ x - left], x


def test_many_right_hand_sides_are_not_worth_narrow_factors() -> None:
    a, b, _ = problem(1e2, 1e-3)
    few, many = (lstsq(a, np.stack([b] * k, 1)) for k in (1, N))
    assert [stage.precision for stage in few.stages] == ["fp32"]
    assert [stage.precision for stage in many.stages] == ["fp64"]


def test_the_backward_error_is_that_of_the_worst_right_hand_side() -> None:
    """Columns of unlike sizes: each is held against its own."""
    a, b, _ = problem(1e2, 1.0)
    sides = np.stack([b, 1e12 * b, 1e-9 * np.random.default_rng(1).standard_normal(len(b))], 1)
    found = lstsq(a, sides)
    each = [lstsq(a, side, precision="fp64").backward_error for side in sides.T]
    assert found.backward_error == pytest.approx(max(each), rel=3, abs=0)
    assert found.backward_error < 1e-14


@pytest.mark.parametrize("kind", ["real", "complex"])
@pytest.mark.parametrize("small", [1e-5, 1e-6, 1e-7])
def test_the_evidence_is_that_of_the_exact_residual(small: float, kind: str) -> None:
    """Lauchli's matrix: what is left of b is far below the rounding of A x in float64."""
    a = np.vstack([np.ones((1, 4)), small * np.eye(4)]) * (1j if kind == "complex" else 1)
    left = 0.1 * small * np.array([-small, 1, 1, 1, 1])
    for b in (a @ np.ones(4) + left, np.stack([np.eye(5)[0], a @ np.arange(4.0) + left], 1)):
        found = lstsq(a, b)
        for one, side in zip(found.columns or [found], b.reshape(5, -1).T, strict=True):
            residual, optimality = exact_evidence(a, one.x, side)
            assert one.residual == pytest.approx(residual, rel=1e-6)
            assert one.optimality == pytest.approx(optimality, rel=0.05, abs=1e-16)


def exact_evidence(a: Array, x: Array, b: Array) -> tuple[float, float]:
    """Return |r| / |b| and |A^H r| / (|A| |r|) of r = b - A x in rational numbers, as pairs of reals."""
    whole = np.block([[a.real, -a.imag], [a.imag, a.real]])
    rows = [[Fraction(v) for v in row] for row in whole.tolist()]
    unknowns, right = ([Fraction(v) for v in np.r_[v.real, v.imag].tolist()] for v in (x, b))
    r = [of_b - sum(map(mul, row, unknowns)) for row, of_b in zip(rows, right, strict=True)]
    slope = [sum(map(mul, column, r)) for column in zip(*rows, strict=True)]
    length, across = (float(sum(v * v for v in each)) ** 0.5 for each in (r, slope))
    return length / float(np.linalg.norm(b)), across / (float(np.linalg.norm(a)) * length)


def test_a_large_exact_solution_does_not_hide_the_error_of_a_small_one() -> None:
    rng = np.random.default_rng(3)
    a = np.zeros((24, 12))
    a[:6, :6], a[6:, 6:] = np.eye(6), rng.standard_normal((18, 6))
    exact, rounded = 2.0**40 * np.arange(1, 7), rng.standard_normal(6)
    sides = np.stack([a @ np.r_[exact, np.zeros(6)], a @ np.r_[np.zeros(6), rounded]], 1)
    alone = lstsq(a, sides[:, 1], precision="fp64").backward_error
    both = lstsq(a, sides, precision="fp64").backward_error
    assert 1e-18 < alone < 1e-15
    assert alone / 10 < both < 10 * alone


def test_what_the_stages_took_is_no_more_than_the_call_took() -> None:
    a, b, _ = problem(1e5, 1e-3)
    began = time.perf_counter()
    found = lstsq(a, b)
    whole = time.perf_counter() - began
    spent = [s for stage in found.stages for s in (stage.factor_seconds, stage.refine_seconds)]
    assert min(spent) >= 0
    assert 0 < sum(spent) <= whole


@pytest.mark.parametrize("k", [None, 2])
def test_a_matrix_of_zeros_has_the_solution_zero_without_error(k: int | None) -> None:
    found = lstsq(np.zeros((3, 2)), np.ones((3, k) if k else 3))
    assert not found.x.any()
    assert (found.residual, found.optimality, found.backward_error) == (1.0, 0.0, 0.0)


def error(found: Array, x: Array) -> float:
    return float(np.linalg.norm(found - x) / np.linalg.norm(x))


@pytest.mark.parametrize(
    ("precision", "condition", "residual"),
    pairs(("auto", "fp32", "bf16x2", "fp64"), (1e1, 1e3, 1e5, 1e7), (0.0, 1e-3, 1.0)),
)
def test_the_error_is_that_of_numpy(precision: str, condition: float, residual: float) -> None:
    a, b, x = problem(condition, residual)
    reference = error(np.linalg.lstsq(a, b, rcond=None)[0], x)
    size = np.linalg.norm(b) / np.linalg.norm(x)  # what the residual adds to the condition
    allowed = 2.0**-53 * condition * (1 + residual * condition / size)
    assert error(lstsq(a, b, precision=precision).x, x) <= max(10 * reference, allowed)


@pytest.mark.parametrize(
    ("precision", "powers"),
    pairs(
        ("fp32", "bf16x2", "fp64"),
        ((-1000, -900), (-530, -530), (-530, 0), (0, -900), (0, 900), (600, -300), (600, 0), (600, 900)),
    ),
)
def test_powers_of_two_change_nothing_but_the_exponent(precision: str, powers: tuple[int, int]) -> None:
    """Sums of squares are beyond double precision on both sides."""
    of_a, of_b = powers
    a, b, _ = problem(1e5, 1.0)
    plain: Any = lstsq(a, b, precision=precision)
    sides = np.stack([b, 2.0**-50 * b, 0 * b], 1)
    scaled: Any = lstsq(a * 2.0**of_a, sides * 2.0**of_b, precision=precision)
    x = np.ldexp(scaled.x, of_a - of_b)
    assert max(error(x[:, 0], plain.x), error(x[:, 1] * 2.0**50, plain.x)) < 1e-10
    assert not x[:, 2].any()
    for found in (scaled, *scaled.columns[:2]):
        assert found.converged
        assert found.residual == pytest.approx(plain.residual, rel=1e-9)
        assert 0 < found.backward_error < 1e-13
        assert 0 < found.optimality < 1e-13


def test_a_solution_outside_the_range_is_said() -> None:
    a, b, _ = problem(10.0, 1e-3)
    for of_a, of_b in ((-600, 600), (600, -600)):
        with pytest.warns(RuntimeWarning, match="scale A or b"):
            found: Any = lstsq(a * 2.0**of_a, np.stack([b, 0 * b], 1) * 2.0**of_b)
        assert [column.converged for column in found.columns] == [False, True]
        assert not found.converged


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("kind", ["ones", "Kahan", "Vandermonde"])
def test_pivots_do_not_hide_that_columns_depend_on_each_other(kind: str, precision: str) -> None:
    n, rng = 60, np.random.default_rng(0)
    unit = np.eye(n) - np.triu(np.ones((n, n)), 1)  # triangular, of condition 2^60
    ones = np.linalg.qr(rng.standard_normal((n + 5, n)))[0] @ unit
    sine, cosine = np.sin(0.9), np.cos(0.9)
    kahan = sine ** np.arange(n)[:, None] * (np.eye(n) - cosine * np.triu(np.ones((n, n)), 1))
    a = {"ones": ones, "Kahan": kahan, "Vandermonde": np.vander(np.linspace(0, 1, n), 20)}[kind]
    b = rng.standard_normal(len(a))
    expected, _, rank, _ = np.linalg.lstsq(a, b, rcond=None)
    found: Any = lstsq(a, b, precision=precision)
    assert rank < a.shape[1]
    assert found.stages[-1].method == f"SVD, rank {rank} of {a.shape[1]}"
    assert np.allclose(found.x, expected, rtol=1e-9, atol=1e-9 * abs(expected).max())


def test_the_condition_is_not_that_of_the_pivots() -> None:
    a = np.eye(40) - np.triu(np.ones((40, 40)), 1)  # its pivots are all one
    singular = np.linalg.svd(a, compute_uv=False)
    found: Any = lstsq(a, np.ones(40), precision="fp64")
    assert found.condition == pytest.approx(singular[0] / singular[-1], rel=0.3)


@pytest.mark.parametrize("name", PRECISIONS)
def test_every_precision_refines_an_easy_problem(name: str) -> None:
    a, b, _ = problem(3.0, 1e-2)
    found: Any = lstsq(a, b, precision=name)
    assert [s.precision for s in found.stages] == [name]
    assert found.backward_error < 1e-13
    assert 2 < found.condition < 100


def test_it_falls_back_and_says_why() -> None:
    a, b, _ = problem(1e7, 1.0)
    found: Any = lstsq(a, b, precision="fp32")
    assert found.fell_back
    assert found.stages[0].reason
    refused: Any = lstsq(*problem(1e12, 0.0)[:2])
    assert refused.stages[0].code == -1


def test_families_shapes_complex_and_scales() -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(300, 80, generator=generator, dtype=torch.float64)
    b = torch.randn(300, 3, generator=generator, dtype=torch.float64)
    expected = torch.linalg.lstsq(a, b).solution
    for precision in ("auto", "bf16x3"):
        assert torch.allclose(lstsq(a, b, precision=precision), expected, rtol=1e-12)
    assert lstsq(a.numpy(), b[:, 0].numpy()).x.shape == (80,)
    scales = torch.logspace(-30, 30, 80, dtype=torch.float64)
    assert torch.allclose(lstsq(a * scales, b).x * scales[:, None], expected, rtol=1e-11)
    c, d = torch.complex(a[:150], a[150:]), torch.complex(b[:150], b[150:])
    for precision in ("auto", "bf16x2", "fp64"):
        assert torch.allclose(lstsq(c, d, precision=precision), torch.linalg.lstsq(c, d).solution, rtol=1e-11)
    assert lstsq(np.zeros((4, 0)), np.ones(4)).x.shape == (0,)
    assert not lstsq(a, torch.zeros(300, dtype=torch.float64)).x.any()


@pytest.mark.parametrize(
    ("shape", "rank", "kind"),
    pairs(
        ((5, 9), (9, 5), (150, 160), (160, 150), (3, 3), (1, 4), (4, 1)),
        (0, 1, 3, 1000),
        ("real", "complex"),
    ),
)
def test_of_many_solutions_it_is_the_shortest_as_numpy_has_it(
    shape: tuple[int, int], rank: int, kind: str
) -> None:
    rng = np.random.default_rng(sum(shape))
    inner = min(rank, *shape)
    a = rng.standard_normal((shape[0], inner)) @ rng.standard_normal((inner, shape[1]))
    b = rng.standard_normal((shape[0], 2))
    if kind == "complex":
        a, b = a * (1 + 2j), b + 1j * rng.standard_normal(b.shape)
    expected = np.linalg.lstsq(a, b, rcond=None)[0]
    found: Any = lstsq(a, b)
    assert np.allclose(found.x, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max(initial=1e-300))
    assert np.allclose(lstsq(a, b[:, 0]), found.x[:, 0])
    if inner < shape[1]:
        assert found.stages[-1].method == f"SVD, rank {inner} of {min(shape)}"


def test_integers_lists_and_arrays_that_cannot_be_written_are_taken() -> None:
    a, b = np.array([[1, 0], [1, 1], [1, 2]]), np.array([1, 3, 5])
    assert np.allclose(lstsq(a, b), [1, 2])
    assert np.allclose(lstsq(a.tolist(), b.tolist()), [1, 2])
    b.flags.writeable = False
    assert np.allclose(lstsq(np.broadcast_to(a, (3, 2)), b), [1, 2])


@pytest.mark.parametrize(
    ("a", "b", "kind", "said"),
    [
        (np.ones(3), np.ones(2), ArgumentError, r"expected \(m, n\)"),
        (torch.ones(3, 2, requires_grad=True), torch.ones(3), ArgumentError, r"pass A.detach\(\)"),
        (torch.ones(3, 2), torch.ones(3, requires_grad=True), ArgumentError, r"pass b.detach\(\)"),
        (np.ones((3, 2)), np.ones(2), ArgumentError, r"expected \(3,\) or \(3, k\)"),
        (np.array([[np.nan], [1.0]]), np.ones(2), DataError, "A holds NaN"),
    ],
)
def test_bad_input_is_refused(a: Any, b: Array, kind: type[Exception], said: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(kind, match=said):
            lstsq(a, b)
