"""Conjugate gradients whose vectors are stored narrow, with reliable updates that keep the residual true.

Clark et al., Solving Lattice QCD systems of equations using mixed precision solvers on GPUs, 2010, section 5;
the library QUDA has the triggers, the Polak-Ribiere step and the re-projection.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers.krylov.deflation import Deflation
from fewbits.solvers.krylov.engine import Engine, TorchEngine
from fewbits.solvers.krylov.problem import Problem, Watcher, check_delta, check_symmetric
from fewbits.solvers.krylov.reliable import Deviation, Drop, Trigger
from fewbits.solvers.krylov.result import KrylovResult
from fewbits.solvers.krylov.space import Preconditioner, Space, roundoff
from fewbits.solvers.precision import KrylovPrecision


def cg(
    a: Any,
    b: Any,
    *,
    precision: str | KrylovPrecision = "auto",
    tol: float = 1e-10,
    delta: float | None = 0.1,
    trigger: str = "drop",
    most: int | None = None,
    preconditioner: Preconditioner | None = None,
    deflation: Deflation | None = None,
    start: torch.Tensor | None = None,
    watch: Watcher | None = None,
) -> KrylovResult:
    """Solve A x = b for a symmetric positive definite A.

    Search direction and residual are rounded whenever they are stored, arithmetic is float32, sums are
    float64, and x is accumulated apart and added up in float64. Whenever the residual has fallen by
    ``delta``, it is computed anew in float64.

    Args:
        a: a matrix of NumPy, PyTorch or SciPy, a function, or an :class:`Operator`.
        b: (n,) numpy.ndarray or torch.Tensor.
        precision: see :func:`krylov_precision`; ``auto`` is the operator's own, float32 where it has none,
            and double where that does not converge.
        tol: |b - A x| <= tol |b|, the true residual.
        delta: None for no reliable updates, which then end with a residual that is not what it claims.
        trigger: ``drop``, by ``delta``, or ``deviation``, by a bound on the error of the recurrence.
        most: iterations; 10 n by default.
        preconditioner: a function from a float32 (in double, float64) vector r to one close to A^-1 r;
            symmetric positive definite.
        deflation: low modes, taken out of every true residual.
        start: a first solution, (n,) float64; zero by default.
        watch: called with the iteration and its residual over |b|.

    Raises:
        ArgumentError: shapes that do not fit, an A that is not symmetric, or a tolerance, delta, trigger or
            precision out of range.
        DataError: NaN or infinity, or a direction of negative curvature: A is not positive definite.
    """
    problem = Problem(a, b, tol, most, watch)
    check_delta(delta)
    if trigger not in ("drop", "deviation"):
        raise ArgumentError(f"trigger={trigger!r}; expected drop or deviation")
    check_symmetric(problem.a)
    if start is not None:
        problem.y = start.clone()

    def attempt(one: KrylovPrecision) -> None:
        own = problem.a.engine(one) if preconditioner is None else None
        engine = TorchEngine(Space(problem.a, one, preconditioner)) if own is None else own
        when: Trigger | None = None
        if delta is not None:
            when = Drop(delta) if trigger == "drop" else _deviation(problem, one)
        _iterate(problem, engine, when, deflation)

    return problem.solve(precision, attempt)


def _deviation(problem: Problem, one: KrylovPrecision) -> Deviation:
    return Deviation(roundoff(one), problem.a.norm(problem.a.exact(problem.b)) / problem.size)


def _iterate(problem: Problem, engine: Engine, trigger: Trigger | None, deflation: Deflation | None) -> None:
    """Iterate from problem.y; the engine's x is what was found since."""
    rz, _ = _load(problem, engine, trigger, deflation)
    gamma, beta = 1.0, 0.0
    while problem.goes_on:
        curvature, length2 = engine.turn(gamma, beta)
        if curvature <= 0:
            raise DataError(
                f"A is not positive definite: p^T A p = {curvature:.3g} in iteration"
                f" {len(problem.history) + 1}; conjugate gradients need a symmetric positive definite matrix"
            )
        alpha, before = rz / curvature, rz
        rr, rz, mixed = engine.advance(alpha)
        if not math.isfinite(rr) or not math.isfinite(rz):
            return
        problem.note(math.sqrt(rr))
        if trigger is not None:
            fires = trigger.fires(problem.claimed, alpha * math.sqrt(length2))
            if fires or problem.claimed <= problem.target:
                problem.updates += 1
                rz, rp = _load(problem, engine, trigger, deflation)
                # The direction has to stay at right angles to the residual it came from.
                beta = rz / before
                gamma = 1.0 - beta * rp / rz if rz > 0 else 1.0
                continue
        # Polak and Ribiere: what rounding left of the old residual in the new one is taken out.
        sigma = rz - mixed
        gamma, beta = 1.0, (sigma if sigma > 0 else rz) / before
    problem.y = problem.y + engine.partial()


def _load(
    problem: Problem, engine: Engine, trigger: Trigger | None, deflation: Deflation | None
) -> tuple[float, float]:
    """Move the engine's x to the solution and give it the true residual; return r.z and r.p."""
    exact = problem.add(engine.partial())
    if deflation is not None:
        # The first correction takes from the error even where it adds to the residual.
        step = deflation.correction(exact)
        exact = problem.add(step) if problem.updates == 0 else problem.improve(step, exact)
    if trigger is not None:
        trigger.restart(problem.claimed, problem.a.norm(problem.y))
    _, rz, rp = engine.load(exact)
    return rz, rp
