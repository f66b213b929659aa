"""Least squares: a narrow QR factorization, refined through the augmented system to double accuracy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import linalg

from fewbits.errors import ArgumentError
from fewbits.records import Stage
from fewbits.solvers.dense import condition_probe, qr
from fewbits.solvers.dense import plan as plans
from fewbits.solvers.dense.arrays import as_given, checked_columns, finite, tensor
from fewbits.solvers.dense.refinement import EPS, MOST_STEPS
from fewbits.solvers.precision import Precision, roundoff
from fewbits.solvers.solution import REASONS, Result

Watch = Callable[[str, int, float], None]


def lstsq(
    a: Any,
    b: Any,
    *,
    precision: str | Precision = "auto",
    full: bool = False,
    watch: Watch | None = None,
) -> Any:
    """Return the x that minimizes the 2-norm of b - A x, as accurate as double precision makes it.

    A, with its columns scaled by powers of two, is factorized narrow; solution and residual are refined
    together with the residuals of the augmented system in float64 (Bjorck, Iterative Refinement of Linear
    Least Squares Solutions I, 1967). Converged is a correction that rounding A and b once would make too:
    sqrt(m) 2^-53 k (|x| + |r| / |A|) with k the condition of R. Where that is not reached, as with a large
    residual of an ill-conditioned A, the factors are double. A matrix with more columns than rows, or whose
    columns depend on each other, has many solutions: the shortest one is returned, by LAPACK's
    GELSD in double precision, with NumPy's rule for the rank.

    Args:
        a: (m, n); numpy.ndarray, torch.Tensor or nested lists of real or complex numbers, without gradient.
        b: (m,) or (m, k).
        precision: ``auto`` or a name of :data:`PRECISIONS`; refinement is classical in all of them.
        full: return a :class:`Result` instead of the solution. Its backward error is the smaller one of
            |A^H r| / (|A| |r|) and |r| / (|A| |x| + |b|), Frobenius and 2-norms (Stewart, Research,
            Development, and LINPACK, 1977), its history the size of each correction relative to x, and its
            condition a lower bound from R.
        watch: called with a precision, the number of corrections before, and each new relative size.

    Returns:
        x, (n,) or (n, k), of b's family.

    Raises:
        ArgumentError: shapes that do not fit, no such precision, or a tensor that requires a gradient.
        DataError: NaN or infinity in the input.

    >>> import numpy as np
    >>> lstsq(np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]), np.array([1.0, 3.0, 5.0])).round(12)
    array([1., 2.])
    """
    for given, name in ((a, "A"), (b, "b")):
        if isinstance(given, torch.Tensor) and given.requires_grad and torch.is_grad_enabled():
            raise ArgumentError(f"{name} requires a gradient, which lstsq has not; give {name}.detach()")
    wide = tensor(a, "A")
    if wide.ndim != 2:
        raise ArgumentError(f"A has the shape {tuple(wide.shape)}; expected (m, n)")
    finite(wide, "A")
    columns = checked_columns(b, len(wide))
    dtype = torch.promote_types(wide.dtype, columns.dtype)
    wide, columns = wide.to(dtype), columns.to(dtype)
    if 0 in (*wide.shape, columns.shape[1]):
        empty = as_given(columns.new_zeros(wide.shape[1], columns.shape[1]), b)
        return Result(empty, 0.0, math.nan, math.nan, 0, math.nan, ()) if full else empty
    plan = plans.chain(precision, wide.shape[1])
    if len(wide) < wide.shape[1]:
        plan = ()
    if precision == "auto" and not plans.is_worth_it(wide.shape[1], columns.shape[1]):
        plan = plan[-1:]
    stages: list[Stage] = []
    for one in plan:
        x, stage, condition = _attempt(wide, columns, one, precision == "auto", watch)
        stages.append(stage)
        if x is not None:
            found = as_given(x, b)
            if not full:
                return found
            error = _backward_error(wide, x, columns)
            return Result(found, error, math.nan, math.nan, stage.code, condition, tuple(stages))
    x, stage = _shortest(wide, columns)
    found = as_given(x, b)
    if not full:
        return found
    error = _backward_error(wide, x, columns)
    return Result(found, error, math.nan, math.nan, 0, math.nan, (*stages, stage))


def _shortest(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, Stage]:
    """Return the shortest of the solutions, by singular values; the rank counts those above eps max(m, n)."""
    began = time.perf_counter()
    x, _, rank, _ = linalg.lstsq(a.numpy(), b.numpy(), cond=2 * EPS * max(a.shape), lapack_driver="gelsd")
    spent = time.perf_counter() - began
    method = f"SVD, rank {rank} of {min(a.shape)}"
    return torch.from_numpy(np.ascontiguousarray(x)), Stage("fp64", method, 0, 0, spent, 0.0, "", ())


def _attempt(
    a: torch.Tensor, b: torch.Tensor, one: Precision, doubting: bool, watch: Watch | None
) -> tuple[torch.Tensor | None, Stage, float]:
    """Return the solution, or None where it did not converge, with the stage and the condition of R."""
    began = time.perf_counter()
    history: list[float] = []

    def note(size: float) -> None:
        history.append(size)
        if watch is not None:
            watch(one.name, len(history) - 1, size)

    def stage(code: int, reason: str = "") -> Stage:
        return Stage(
            one.name, "QR", code, 0, factored, time.perf_counter() - began - factored, reason, tuple(history)
        )

    double = one.factor == "fp64"
    scales = qr.column_scales(a)
    scaled = a * scales
    low = scaled if double else scaled.to(_NARROW[a.dtype])
    judged = doubting and not double
    doubt = condition_probe.doubt(qr.leading_pivots(low), a.shape[1], roundoff(one.factor)) if judged else ""
    factors = None if doubt else qr.factorize(low, one.factor, scales)
    factored = time.perf_counter() - began
    if factors is None:
        return None, stage(-1, doubt), math.nan
    pivots = factors.pivots.abs().double()
    if not bool(torch.isfinite(pivots).all()):
        return None, stage(-2, REASONS[-2]), math.nan
    largest, least = float(pivots.max()), float(pivots.min())
    if least <= max(a.shape) * roundoff("fp64" if double else "fp32") * largest:
        return (
            None,
            stage(-3, f"a pivot of R is {least / largest if largest else 0:.0e} of the largest"),
            math.nan,
        )
    condition = largest / least
    r, z = factors.solve(b, torch.zeros_like(b[: a.shape[1]]))
    if double:
        return scales[:, None] * z, stage(0), condition
    z, code, reason = _refined(scaled, b, r, z, factors, condition, note)
    return (scales[:, None] * z if code >= 0 else None), stage(code, reason), condition


_NARROW = {torch.float64: torch.float32, torch.complex128: torch.complex64}


def _refined(
    a: torch.Tensor,
    b: torch.Tensor,
    r: torch.Tensor,
    z: torch.Tensor,
    factors: qr.Orthogonal,
    condition: float,
    note: Callable[[float], None],
) -> tuple[torch.Tensor, int, str]:
    """Return the solution with the code and the reason of a Stage."""
    size = float(factors.pivots.abs().max())
    before = math.inf
    for step in range(1, MOST_STEPS + 1):
        more_r, more_z = factors.solve(b - r - a @ z, -(a.mH @ r))
        r, z = r + more_r, z + more_z
        length, change, left = (torch.linalg.vector_norm(v, dim=0) for v in (z, more_z, r))
        allowed = math.sqrt(len(a)) * EPS * condition * (length + left / size)
        now = float(torch.where(change > 0, change / length, 0.0).max())
        note(now)
        if not math.isfinite(now):
            return z, -5, REASONS[-5]
        if bool((change <= allowed).all()):
            return z, step, ""
        if now > before / 2:
            return z, -50, f"a step of refinement left {now / before:.2g} of the correction"
        before = now
    return z, -50, f"{MOST_STEPS} steps left corrections of {before:.1e}"


def _backward_error(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> float:
    r = b - a @ x
    norm = torch.linalg.vector_norm(a)
    length = torch.linalg.vector_norm(r, dim=0)
    across = torch.linalg.vector_norm(a.mH @ r, dim=0) / (norm * length)
    along = length / (norm * torch.linalg.vector_norm(x, dim=0) + torch.linalg.vector_norm(b, dim=0))
    return float(torch.where(length > 0, torch.minimum(across, along), 0.0).max())
