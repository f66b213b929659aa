"""Conjugate gradients whose vectors are stored narrow, with reliable updates that keep the residual true.

Clark et al., Solving Lattice QCD systems of equations using mixed precision solvers on GPUs, 2010, section 5;
the library QUDA has the triggers, the Polak-Ribiere step and the re-projection.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers.krylov.deflation import Deflation
from fewbits.solvers.krylov.engine import Engine, Preconditioner, TorchEngine
from fewbits.solvers.krylov.problem import Problem, check_symmetric
from fewbits.solvers.krylov.reliable import Deviation, Drop, Trigger
from fewbits.solvers.krylov.result import KrylovResult
from fewbits.solvers.precision import KRYLOV_PRECISIONS, KrylovPrecision, krylov_precision

MOST_INCREASES = 10  # reliable updates after which the true residual was larger than before

Watcher = Callable[[int, float], None]


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
        watch: called with the iteration and its residual over |b|.

    Raises:
        ArgumentError: shapes that do not fit, an A that is not symmetric, or a tolerance, delta, trigger or
            precision out of range.
        DataError: NaN or infinity, or a direction of negative curvature: A is not positive definite.
    """
    problem = Problem(a, b, tol, most)
    if delta is not None and not 0 < delta < 1:
        raise ArgumentError(f"delta={delta}; expected a factor between 0 and 1, or None")
    if trigger not in ("drop", "deviation"):
        raise ArgumentError(f"trigger={trigger!r}; expected drop or deviation")
    chain = _chain(precision, problem)
    check_symmetric(problem.a)
    path: tuple[str, ...] = ()
    history: list[float] = []
    x, updates, claimed = torch.zeros_like(problem.b), 0, 0.0
    for one in chain if problem.size > 0 else ():
        engine = _engine(problem, one, preconditioner)
        when: Trigger | None = None if delta is None else Drop(delta)
        if trigger == "deviation" and delta is not None:
            norm = problem.a.norm(problem.a.exact(problem.b)) / problem.size
            when = Deviation(_roundoff(one), norm)
        loop = _Iteration(problem, engine, when, deflation, watch, history)
        loop.y = x
        loop.run()
        x, claimed, path = loop.solution(), loop.claimed, (*path, one.name)
        updates += loop.updates
        if claimed <= problem.target and (delta is not None or len(chain) == 1):
            break
    return problem.result(x, claimed, history, updates, path)


def _chain(precision: str | KrylovPrecision, problem: Problem) -> list[KrylovPrecision]:
    if precision != "auto":
        return [krylov_precision(precision)]
    return [krylov_precision(problem.a.preferred), KRYLOV_PRECISIONS["double"]]


def _engine(problem: Problem, one: KrylovPrecision, preconditioner: Preconditioner | None) -> Engine:
    own = problem.a.engine(one) if preconditioner is None else None
    return TorchEngine(problem.a, one, preconditioner) if own is None else own


def _roundoff(one: KrylovPrecision) -> float:
    """Return the relative error of storing a vector, measured on a random one."""
    from fewbits.solvers.krylov.engine import narrow
    from fewbits.tensor import fake_quantize

    fmt = narrow(one.vectors)
    if fmt is None:
        return 2.0**-53 if one.double else 2.0**-24
    v = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    return float(torch.linalg.vector_norm(fake_quantize(v, fmt) - v) / torch.linalg.vector_norm(v))


class _Iteration:
    """The state of the loop: the solution is y and what the engine has found since."""

    def __init__(
        self,
        problem: Problem,
        engine: Engine,
        trigger: Trigger | None,
        deflation: Deflation | None,
        watch: Watcher | None,
        history: list[float],
    ) -> None:
        self.problem, self.engine, self.trigger = problem, engine, trigger
        self.deflation, self.watch, self.history = deflation, watch, history
        self.y = torch.zeros_like(problem.b)
        self.claimed = math.inf
        self.start = 0.0  # the residual at the last update
        self.updates = self.increases = 0

    def solution(self) -> torch.Tensor:
        return self.y + self.engine.partial()

    def run(self) -> None:
        rz, _ = self._load()
        gamma, beta = 1.0, 0.0
        while len(self.history) < self.problem.most and self.claimed > self.problem.target:
            curvature, length2 = self.engine.turn(gamma, beta)
            if curvature <= 0:
                if math.isnan(curvature):
                    return
                raise DataError(
                    f"A is not positive definite: p^T A p = {curvature:.3g} in iteration"
                    f" {len(self.history) + 1}; conjugate gradients need a symmetric positive definite matrix"
                )
            alpha, before = rz / curvature, rz
            rr, rz, mixed = self.engine.advance(alpha)
            self.claimed = math.sqrt(rr) if rr >= 0 else math.nan
            self.history.append(self.claimed)
            if self.watch is not None:
                self.watch(len(self.history), self.claimed / self.problem.size)
            if not math.isfinite(self.claimed):
                return
            if self.trigger is not None:
                fires = self.trigger.fires(self.claimed, alpha * math.sqrt(length2))
                if fires or self.claimed <= self.problem.target:
                    rz, rp = self._load()
                    self.updates += 1
                    if self.increases > MOST_INCREASES or rz <= 0:
                        return
                    # The direction has to stay at right angles to the residual it came from.
                    beta = rz / before
                    gamma = 1.0 - beta * rp / rz
                    continue
            # Polak and Ribiere: what rounding left of the old residual in the new one is taken out.
            sigma = rz - mixed
            gamma, beta = 1.0, (sigma if sigma > 0 else rz) / before

    def _load(self) -> tuple[float, float]:
        """Move the solution to y and compute the residual anew; return r.z and r.p."""
        self.y = self.solution()
        exact = self.problem.residual(self.y)
        if self.deflation is not None:
            self.y = self.y + self.deflation.correction(exact)
            exact = self.problem.residual(self.y)
        self.claimed = size = self.problem.a.norm(exact)
        self.increases += self.updates > 0 and size > self.start
        self.start = size
        if self.trigger is not None:
            self.trigger.restart(size, self.problem.a.norm(self.y))
        _, rz, rp = self.engine.load(exact)
        return rz, rp
