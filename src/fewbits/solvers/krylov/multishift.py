"""Conjugate gradients for many shifts of one matrix at once.

Jegerlehner, Krylov space solvers for shifted linear systems, hep-lat/9612014: all shifts share one Krylov
space, and their residuals are multiples of one another. With narrow vectors these multiples drift from the
true residuals, so each system is finished separately, as in the library QUDA.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.records import Stage
from fewbits.solvers.krylov.cg import cg
from fewbits.solvers.krylov.problem import Problem
from fewbits.solvers.krylov.space import Space, roundoff
from fewbits.solvers.krylov.stopping import Stopping
from fewbits.solvers.krylov.system import FAR, System, check_symmetric
from fewbits.solvers.operators.adapters import LinearMap
from fewbits.solvers.operators.vectors import exponent_of, real_number, times_power, wide
from fewbits.solvers.precision import KrylovPrecision, krylov_precision
from fewbits.solvers.solution import Solution
from fewbits.typing import Array

TOGETHER = "all shifts share it; each system is finished on its own"


def multishift_cg(
    A: LinearMap,
    b: Array,
    shifts: Sequence[float],
    *,
    rtol: float = 1e-10,
    atol: float = 0.0,
    maxiter: int | None = None,
    precision: str | KrylovPrecision = "auto",
) -> list[Solution[Array]]:
    """Solve (A + s) x = b for each s of ``shifts``, with one product per iteration for all of them.

    Args:
        A: (n, n), symmetric (Hermitian): a matrix of NumPy, PyTorch or SciPy in any layout, nested lists, a
            LinearOperator, a function, or an :class:`Operator`. A plus the smallest shift is positive
            definite.
        b: (n,), real or complex.
        shifts: real numbers.
        rtol: tolerance for the relative residual, at least 0 and below 1.
        atol: tolerance for the absolute residual, at least 0. A system converges when |b - (A + s) x| <=
            max(rtol |b|, atol) in the 2-norm.
        maxiter: most shared iterations, and again most for each system; default 10 n, but at least 100.
        precision: what A and the vectors are held in, see :func:`krylov_precision`; ``auto`` is the
            operator's own, float32 where it has none, and double where that does not converge.

    Returns:
        one :class:`Solution` for each shift; ``iterations`` counts the shared products and its own.

    Raises:
        ArgumentError: no shifts, one that is complex or not finite, shapes that do not fit, an A that is not
            Hermitian, tensors that require gradients, or an option out of range.
        DataError: NaN or infinity, or A plus the smallest shift is not positive definite.
    """
    values = _real(shifts)
    system = System(A, b)
    if system.b.shape[1] != 1 or len(system.shape) != 1:
        raise ArgumentError(f"b has the shape {tuple(system.shape)}; expected (n,) for many shifts")
    check_symmetric(system.a)
    largest = max(values, key=abs)
    above = exponent_of(abs(largest)) + system.exponent
    if largest != 0 and above > FAR:
        try:
            system.a, system.exponent = system.a.scaled(-above), system.exponent - above
        except DataError as error:
            raise DataError(
                f"A holds values more than 1e300 below the shift {largest:g}, and no product with both means"
                " anything in double precision; leave that shift out"
            ) from error
    tried = krylov_precision(system.a.preferred if precision == "auto" else precision)
    problem, began = system.problem(0, Stopping(rtol, atol, maxiter)), time.perf_counter()
    scaled = [math.ldexp(s, system.exponent) for s in values]
    base = min(scaled)
    shared = _together(problem, Space(problem.a, tried), base, [s - base for s in scaled])
    history = tuple(h / (problem.size or 1.0) for h in problem.history)
    stage = Stage(tried.name, "multishift_cg", -50, 0, 0.0, time.perf_counter() - began, TOGETHER, history)
    solutions = []
    for s, y in zip(values, shared, strict=True):
        x0 = times_power(y, problem.exponent)
        result: Solution[torch.Tensor] = cg(
            system.unscaled.shifted(s),
            system.b[:, 0],
            x0 if math.isfinite(system.a.peak(x0)) else None,  # cg says what is outside the range
            rtol=rtol,
            atol=atol,
            maxiter=maxiter,
            precision=precision,
        )
        solutions.append(
            replace(
                result.with_x(system.as_given(result.x)),
                iterations=len(history) + result.iterations,
                history=history + result.history,
                stages=(stage, *result.stages),
            )
        )
    return solutions


def _real(shifts: Sequence[float]) -> list[float]:
    try:
        values = [real_number(s) for s in shifts]
    except TypeError:
        values = []
    if not values or not all(math.isfinite(s) for s in values):
        raise ArgumentError(
            f"shifts={shifts!r}; expected finite real numbers, at least one: with a complex shift no A is"
            " positive definite; take gmres"
        )
    return values


def _together(problem: Problem, space: Space, base: float, above: list[float]) -> list[torch.Tensor]:
    """Return the solutions that the shared recurrence reaches, (n,) float64 each."""
    n = len(above)

    def dot(u: torch.Tensor, v: torch.Tensor) -> float:
        return problem.a.dot(u, v).real

    x = [torch.zeros_like(problem.y) for _ in above]
    r = space.rounded(problem.b)
    p, directions = r, [r] * n
    rr = dot(r, r)
    alpha_before, beta = 1.0, 0.0
    zeta, zeta_before = [1.0] * n, [1.0] * n
    # Below this the shared residual is only rounding error.
    target = max(problem.target, roundoff(space.precision) * problem.size)
    while problem.claimed > target and problem.goes_on:
        image = space.apply(p) + base * p
        curvature = dot(p, image)
        if not curvature > 0:
            break  # rounding, or A + s is not positive definite: cg on each system decides
        alpha = rr / curvature
        following = []
        for i, s in enumerate(above):
            scale = alpha * beta * (zeta_before[i] - zeta[i]) + zeta_before[i] * alpha_before * (
                1 + s * alpha
            )
            following.append(zeta[i] * zeta_before[i] * alpha_before / scale if scale != 0 else 0.0)
            if zeta[i] != 0:
                x[i].add_(wide(directions[i]), alpha=alpha * following[i] / zeta[i])
        r = space.rounded(r - alpha * image)
        before, rr = rr, dot(r, r)
        problem.note(math.sqrt(rr), lambda: problem.y)
        beta_now = rr / before
        for i in range(n):
            if zeta[i] != 0:
                ratio = following[i] / zeta[i]
                directions[i] = space.rounded(following[i] * r + beta_now * ratio * ratio * directions[i])
        p = space.rounded(r + beta_now * p)
        zeta_before, zeta = zeta, following
        alpha_before, beta = alpha, beta_now
    return x
