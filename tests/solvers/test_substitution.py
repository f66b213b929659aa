"""Substitution in double: few columns, many and LAPACK's give the same; ``working`` says which is taken."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import linalg

from fewbits.kernels import native
from fewbits.solvers import factorize
from fewbits.solvers.dense import cholesky, lu
from fewbits.solvers.dense.factors import Factors
from fewbits.solvers.dense.substitution import _FEW, _FEW_OF_DOUBLE

N = 90


def factors_of(method: str, dtype: torch.dtype) -> tuple[Factors, torch.Tensor]:
    """Return float32 or complex64 factors, and more right-hand sides than the kernel takes."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(N, N, generator=generator, dtype=dtype)
    b = torch.randn(N, _FEW + 1, generator=generator, dtype=torch.promote_types(dtype, torch.float64))
    if method.startswith("Cholesky"):
        low = a @ a.mH + torch.eye(N)
        found = cholesky.factorize(low, method.partition(" ")[2], None)
        assert found is not None
        return found, b
    return lu.factorize(a.clone(), method.partition(" ")[2], None, None), b


METHODS = ["LU fp32", "LU bf16x3", "Cholesky fp32", "Cholesky bf16x3"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=["real", "complex"])
@pytest.mark.parametrize("adjoint", [False, True], ids=["A", "adjoint"])
@pytest.mark.parametrize("method", METHODS)
def test_few_columns_are_solved_as_lapack_solves_many(method: str, adjoint: bool, dtype: torch.dtype) -> None:
    factors, b = factors_of(method, dtype)
    wide = factors.wide().adjoint() if adjoint else factors.wide()
    before = b.clone()
    by_lapack = wide.solve(b)
    size = by_lapack.abs().amax(0)
    for k in (1, 3, _FEW):
        found = wide.solve(b[:, :k])
        assert ((found - by_lapack[:, :k]).abs().amax(0) <= 1e-12 * size[:k]).all()
    assert torch.equal(b, before)
    # The control: with the same factors in float32 it is another number.
    narrow = factors.adjoint() if adjoint else factors
    assert ((narrow.solve(b) - by_lapack).abs().amax(0) > 1e-9 * size).all()


def test_only_many_columns_are_worth_a_copy_of_the_factors() -> None:
    factors, b = factors_of("LU fp32", torch.float32)
    calls: list[str] = []
    assert factors.widened is not None
    whole = native.substitute
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "substitute", lambda *a, **k: (calls.append("kernel"), whole(*a, **k))[1])
        lapack = torch.linalg.solve_triangular
        patch.setattr(
            torch.linalg, "solve_triangular", lambda *a, **k: (calls.append("LAPACK"), lapack(*a, **k))[1]
        )
        factors.wide().solve(b[:, :_FEW])
        assert calls == ["kernel"] * 2
        factors.wide().solve(b)
    assert calls == ["kernel"] * 2 + ["LAPACK"] * 2


@pytest.mark.parametrize("adjoint", [False, True], ids=["A", "adjoint"])
def test_factors_in_double_are_solved_as_scipy_solves_them(
    adjoint: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lu, "OWN_FROM", N)
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(N, N, generator=generator, dtype=torch.float64)
    b = torch.randn(N, _FEW_OF_DOUBLE + 1, generator=generator, dtype=torch.float64)
    factors = lu.factorize_double(a)
    expected = torch.from_numpy(linalg.solve(a.T.numpy() if adjoint else a.numpy(), b.numpy()))
    calls: list[int] = []
    whole = native.substitute
    monkeypatch.setattr(native, "substitute", lambda *a, **k: (calls.append(1), whole(*a, **k))[1])
    for k in (1, 2, _FEW_OF_DOUBLE, _FEW_OF_DOUBLE + 1):
        before = b.clone()
        found = (factors.adjoint() if adjoint else factors).solve(b[:, :k])
        assert ((found - expected[:, :k]).abs().amax(0) <= 1e-12 * expected[:, :k].abs().amax(0)).all()
        assert len(calls) == (6 if k > _FEW_OF_DOUBLE else 2 * [1, 2, _FEW_OF_DOUBLE].index(k) + 2)
        assert torch.equal(b, before)
    # The control: of the transpose it is another solution.
    other = (factors if adjoint else factors.adjoint()).solve(b[:, :1])
    assert (other - expected[:, :1]).abs().max() > 1e-3


def first_errors(precision: str, systems: Any) -> Any:
    """Return the errors of the solutions that refinement starts from."""
    found = [factorize(a, precision).solve(b).stages for a, b in systems]
    assert all(len(stages) == 1 for stages in found)
    return np.array([stages[0].history[0] for stages in found])


def test_the_role_working_is_that_of_the_triangular_solves() -> None:
    """The yardstick: SciPy's factors in float32, and its triangular solves in both.

    Its LAPACK rounds in another order: the mean of many systems is what agrees. That of 24 was
    off by 0.1 with one CPU.
    """
    rng = np.random.default_rng(3)
    systems = [(rng.standard_normal((100, 100)), rng.standard_normal(100)) for _ in range(96)]
    expected: dict[str, list[float]] = {"fp32": [], "fp64": []}
    for a, b in systems:
        factors, pivots = linalg.lu_factor(a.astype(np.float32))
        for name, dtype in (("fp32", np.float32), ("fp64", np.float64)):
            x = linalg.lu_solve((factors.astype(dtype), pivots), b.astype(dtype))
            x = x.astype(np.longdouble)
            expected[name].append(float((np.abs(b - a @ x) / (np.abs(a) @ np.abs(x) + np.abs(b))).max()))
    wide, narrow = first_errors("fp32", systems), first_errors("fp32:working=fp32", systems)
    means = {name: np.log(errors).mean() for name, errors in expected.items()}
    assert np.log(wide).mean() == pytest.approx(means["fp64"], abs=0.1)
    assert np.log(narrow).mean() > means["fp32"] - 0.1 > means["fp64"] + 0.1
    assert (first_errors("fp32:working=fp64", systems) == wide).all()
    assert (first_errors("dsgesv", systems) == narrow).all()
