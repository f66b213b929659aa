"""Conjugate gradients for many shifts of one matrix at once.

Jegerlehner, Krylov space solvers for shifted linear systems, hep-lat/9612014: all shifts share one Krylov
space, and their residuals are multiples of one. With narrow vectors the multiples part from the truth, so
each system is finished on its own, as the library QUDA does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers.krylov.cg import cg
from fewbits.solvers.krylov.problem import Problem, check_symmetric
from fewbits.solvers.krylov.result import KrylovResult
from fewbits.solvers.krylov.space import Space, roundoff
from fewbits.solvers.precision import KrylovPrecision, krylov_precision


def multishift_cg(
    a: Any,
    b: Any,
    shifts: Sequence[float],
    *,
    precision: str | KrylovPrecision = "auto",
    tol: float = 1e-10,
    most: int | None = None,
) -> list[KrylovResult]:
    """Solve (A + s) x = b for each s of ``shifts``, with one product per iteration for all of them.

    Args:
        a: symmetric; A plus the smallest shift is positive definite.
        b: (n,).
        shifts: real numbers.
        precision: see :func:`fewbits.solvers.cg`.
        tol: of each system.
        most: iterations for all together, and again for each.

    Returns:
        one result for each shift; ``iterations`` counts the products that they share, and those of its own.

    Raises:
        ArgumentError: no shifts, one that is not finite, or what :func:`fewbits.solvers.cg` refuses.
        DataError: NaN or infinity, or A plus the smallest shift is not positive definite.
    """
    values = [float(s) for s in shifts]
    if not values or not all(math.isfinite(s) for s in values):
        raise ArgumentError(f"shifts={list(shifts)}; expected finite numbers, at least one")
    problem = Problem(a, b, tol, most, None)
    check_symmetric(problem.a)
    base = min(values)
    one = krylov_precision(problem.a.preferred if precision == "auto" else precision)
    shared = _together(problem, Space(problem.a, one), base, [s - base for s in values])
    found = []
    for s, x in zip(values, shared, strict=True):
        result = cg(problem.a.shifted(s), b, precision=precision, tol=tol, most=most, start=x)
        history = tuple(h / (problem.size or 1.0) for h in problem.history)
        found.append(
            KrylovResult(
                result.x,
                result.converged,
                result.residual,
                result.claimed,
                len(history) + result.iterations,
                result.reliable_updates,
                history + result.history,
                (one.name, *result.path),
            )
        )
    return found


def _together(problem: Problem, space: Space, base: float, above: list[float]) -> list[torch.Tensor]:
    """Return the solutions as far as the shared recurrence carries; (n,) float64 each."""
    dot, n = problem.a.dot, len(above)
    x = [torch.zeros_like(problem.b) for _ in above]
    r = space.stored(problem.b)
    p, directions = r, [r] * n
    rr = dot(r, r)
    alpha_before, beta = 1.0, 0.0
    zeta, zeta_before = [1.0] * n, [1.0] * n
    # Beyond this the shared residual is rounding.
    target = max(problem.target, roundoff(space.precision) * problem.size)
    while problem.claimed > target and len(problem.history) < problem.most:
        image = space.apply(p) + base * p
        curvature = dot(p, image)
        if curvature <= 0:
            raise DataError(
                f"A + {base:g} is not positive definite: p^T (A + s) p = {curvature:.3g} in iteration"
                f" {len(problem.history) + 1}"
            )
        alpha = rr / curvature
        following = []
        for i, s in enumerate(above):
            scale = alpha * beta * (zeta_before[i] - zeta[i]) + zeta_before[i] * alpha_before * (
                1 + s * alpha
            )
            following.append(zeta[i] * zeta_before[i] * alpha_before / scale if scale != 0 else 0.0)
            if zeta[i] != 0:
                x[i].add_(directions[i].double(), alpha=alpha * following[i] / zeta[i])
        r = space.stored(r - alpha * image)
        before, rr = rr, dot(r, r)
        problem.note(math.sqrt(rr))
        beta_now = rr / before
        for i in range(n):
            if zeta[i] != 0:
                ratio = following[i] / zeta[i]
                directions[i] = space.stored(following[i] * r + beta_now * ratio * ratio * directions[i])
        p = space.stored(r + beta_now * p)
        zeta_before, zeta = zeta, following
        alpha_before, beta = alpha, beta_now
    return x
