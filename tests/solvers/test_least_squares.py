"""Least squares: as close to the solution as double precision comes."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers import PRECISIONS, choice, lstsq
from tests.solvers.systems import Array, randsvd

N = 96


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "FROM", {64: ("fp32",)})


def problem(condition: float, residual: float, seed: int = 0) -> tuple[Array, Array, Array]:
    """Return A, b and the exact solution: A is one matrix twice, and what is left of b is of both signs."""
    generator = np.random.default_rng(seed)
    step = 2.0**-30  # all sums below are exact
    half = np.round(randsvd(condition, 3, N) / step) * step
    x = generator.integers(-8, 9, N).astype(float)
    left = np.round(residual * generator.standard_normal(N) / step) * step
    return np.r_[half, half], np.r_[half @ x + left, half @ x - left], x


def error(found: Array, x: Array) -> float:
    return float(np.linalg.norm(found - x) / np.linalg.norm(x))


@pytest.mark.parametrize("residual", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("condition", [1e1, 1e3, 1e5, 1e7])
@pytest.mark.parametrize("precision", ["auto", "fp32", "bf16x2", "fp64"])
def test_the_error_is_that_of_numpy(precision: str, condition: float, residual: float) -> None:
    a, b, x = problem(condition, residual)
    reference = error(np.linalg.lstsq(a, b, rcond=None)[0], x)
    size = np.linalg.norm(b) / np.linalg.norm(x)  # what the residual adds to the condition
    allowed = 2.0**-53 * condition * (1 + residual * condition / size)
    assert error(lstsq(a, b, precision=precision), x) <= max(10 * reference, allowed)


@pytest.mark.parametrize("name", PRECISIONS)
def test_every_precision_refines_an_easy_problem(name: str) -> None:
    a, b, _ = problem(3.0, 1e-2)
    found: Any = lstsq(a, b, precision=name, full=True)
    assert [s.precision for s in found.stages] == [name]
    assert found.backward_error < 1e-13
    assert 2 < found.condition < 100


def test_it_falls_back_and_says_why() -> None:
    a, b, _ = problem(1e7, 1.0)
    found: Any = lstsq(a, b, precision="fp32", full=True)
    assert found.fell_back
    assert found.stages[0].reason
    refused: Any = lstsq(*problem(1e12, 0.0)[:2], full=True)
    assert refused.stages[0].code == -1


def test_families_shapes_complex_and_scales() -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(300, 80, generator=generator, dtype=torch.float64)
    b = torch.randn(300, 3, generator=generator, dtype=torch.float64)
    expected = torch.linalg.lstsq(a, b).solution
    for precision in ("auto", "bf16x3"):
        assert torch.allclose(lstsq(a, b, precision=precision), expected, rtol=1e-12)
    assert lstsq(a.numpy(), b[:, 0].numpy()).shape == (80,)
    scales = torch.logspace(-30, 30, 80, dtype=torch.float64)
    assert torch.allclose(lstsq(a * scales, b) * scales[:, None], expected, rtol=1e-11)
    c, d = torch.complex(a[:150], a[150:]), torch.complex(b[:150], b[150:])
    for precision in ("auto", "bf16x2", "fp64"):
        assert torch.allclose(lstsq(c, d, precision=precision), torch.linalg.lstsq(c, d).solution, rtol=1e-11)
    assert lstsq(np.zeros((4, 0)), np.ones(4)).shape == (0,)
    assert not lstsq(a, torch.zeros(300, dtype=torch.float64)).any()


@pytest.mark.parametrize(
    ("a", "b", "kind", "said"),
    [
        (np.ones((2, 3)), np.ones(2), ArgumentError, "at least as many rows as columns"),
        (np.ones((3, 2)), np.ones(2), ArgumentError, r"expected \(3,\) or \(3, k\)"),
        (np.ones((3, 2)), np.ones(3), DataError, "columns of A depend on each other"),
        (np.zeros((3, 2)), np.ones(3), DataError, "columns of A depend on each other"),
        (np.array([[np.nan], [1.0]]), np.ones(2), DataError, "A holds NaN"),
    ],
)
def test_bad_input_is_refused(a: Array, b: Array, kind: type[Exception], said: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(kind, match=said):
            lstsq(a, b)
