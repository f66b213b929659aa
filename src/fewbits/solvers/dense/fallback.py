"""Runs the steps of a plan until one gives a solution; the last one is double precision."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fewbits.errors import DataError
from fewbits.records import Stage
from fewbits.solvers.dense import condition
from fewbits.solvers.dense.factors import Factors, Substitute
from fewbits.solvers.dense.plan import Step, most_inner, pays
from fewbits.solvers.dense.prepared_matrix import Factored, PreparedMatrix
from fewbits.solvers.dense.refinement import EPS, Refinement, refine
from fewbits.solvers.dense.system import State, System
from fewbits.typing import Watch

# Largest componentwise error of an unrefined solution in double precision if A was scaled. It is strict
# because LAPACK without scaling chooses other pivots and may have a smaller error.
_ENOUGH_SCALED = 2 * EPS
_STABLE = 16  # times sqrt(n) 2^-53: largest normwise error of a backward stable solution
_OVERFLOW = "x holds NaN or infinity: the solution exceeds what double precision holds"
_UNDERFLOW = (
    "it, or what counts of it, lies below the normal numbers of double precision; scale b up, or A down"
)


@dataclass(frozen=True)
class Attempt:
    """One step on the columns of b.

    Attributes:
        stage: how it went.
        factored: the factorization used.
        system: the equilibrated matrix, or its adjoint.
        b: (n, k), the right-hand sides of that system.
        top: (k,), the exponents of the powers of two divided out of the columns of b.
        factors: those used, or their adjoint; None if the factorization failed.
        y: (n, k), the solution of that system; None if there is none.
        state: y with its residual; None if that was not computed.
    """

    stage: Stage
    factored: Factored
    system: System
    b: torch.Tensor
    top: torch.Tensor
    factors: Factors | None = None
    y: torch.Tensor | None = None
    state: State | None = None


@dataclass(frozen=True)
class Outcome:
    """Columns x, (n, k), that solve a system, the attempts that led there, and a warning or ``""``."""

    x: torch.Tensor
    attempts: tuple[Attempt, ...]
    warning: str


def run(
    matrix: PreparedMatrix,
    b: torch.Tensor,
    steps: Sequence[Step],
    watch: Watch | None = None,
    *,
    adjoint: bool = False,
    judged: bool = False,
) -> Outcome:
    """Solve A x = b, or A^H x = b, by the first of the steps that converges.

    Args:
        matrix: A.
        b: (n, k), of A's dtype.
        steps: in order.
        watch: called with each new componentwise backward error.
        adjoint: whether to solve with A^H.
        judged: whether to compute the residual even if no step needs it.

    Raises:
        DataError: A is singular.
    """
    attempts: list[Attempt] = []
    for step in steps:
        attempts.append(_attempt(matrix, b, step, watch, adjoint, judged))
        if _ends(step, attempts[-1].stage.code):
            break
    last = attempts[-1]
    if last.y is None:
        raise DataError(f"A is singular: {last.stage.reason}; there is no unique solution")
    x = last.system.leaving(last.y, last.top)
    if last.stage.code >= 0 and (reason := _out_of_range(last, last.y, x)):
        last = attempts[-1] = _failed(last, x, reason)
    return Outcome(x, tuple(attempts), _warning(last, x, judged))


def _ends(step: Step, code: int) -> bool:
    """Return whether a step that ended with this code is the last one.

    If LU in double precision met a zero pivot, QR would fail too. If it overflowed or its residual stayed
    large, pivots may have grown, and QR is tried.
    """
    return code >= 0 or (step.is_double and step.method == "LU" and code == -3)


def _attempt(
    matrix: PreparedMatrix, b: torch.Tensor, step: Step, watch: Watch | None, adjoint: bool, judged: bool
) -> Attempt:
    name, method = step.precision.name, step.method
    system = matrix.system(method, adjoint=adjoint)
    inner, top = system.entering(b)
    factored = matrix.factored(step)
    made = factored.spent()
    if factored.factors is None:
        stage = Stage(name, method, factored.code, 0, made, 0.0, factored.reason, ())
        return Attempt(stage, factored, system, inner, top)
    began = time.perf_counter()
    factors = factored.factors.adjoint() if adjoint else factored.factors
    factors = factors if step.precision.working == "fp32" else factors.wide()
    y = _first_solution(factored, factors.solve, inner, adjoint)
    # Cholesky reads one half of A: whether x solves the system with the other one, only the residual tells.
    blind = method == "Cholesky" and matrix.halves_differ
    if step.is_double and not (judged or blind or pays(*b.shape) or system.rows is not None):
        code, reason = (0, "") if bool(torch.isfinite(y.abs()).all()) else (-5, _OVERFLOW)
        stage = Stage(name, method, code, 0, made, time.perf_counter() - began, reason, ())
        return Attempt(stage, factored, system, inner, top, factors, y)
    done = refine(
        system,
        inner,
        y,
        factors,
        "classical" if step.is_double else step.precision.refinement,
        enough=_enough(system, step),
        strictly=blind or not step.is_double,
        most_inner=step.max_inner,
        watch=None if watch is None else lambda iteration, size: watch(name, iteration, size),
    )
    code, reason = done.code, done.reason
    if step.is_double and code < 0 and not blind:
        code, reason = _judge_double(system, done, inner)
    spent = time.perf_counter() - began
    stage = Stage(name, method, code, done.inner, made, spent, reason, tuple(done.history))
    return Attempt(stage, factored, system, inner, top, factors, done.state.x, done.state)


def _first_solution(factored: Factored, solve: Substitute, b: torch.Tensor, adjoint: bool) -> torch.Tensor:
    """Return the solution that the factors give for b; the first call also solves for the probes."""
    if adjoint or factored.answers is not None:
        return solve(b)
    both = solve(torch.cat([b, condition.probes(factored.system.a)], 1))
    factored.answers = both[:, b.shape[1] :]
    return both[:, : b.shape[1]]


def _enough(system: System, step: Step) -> float:
    """Return the largest error at which the first solution needs no refinement."""
    if not step.is_double:
        return EPS
    return _ENOUGH_SCALED if system.rows is not None else math.sqrt(len(system.a)) * EPS


def _judge_double(system: System, done: Refinement, b: torch.Tensor) -> tuple[int, str]:
    """Return code and reason for a solution in double precision that refinement did not bring to 2^-53."""
    if not math.isfinite(done.state.error):
        return -5, _OVERFLOW
    error, allowed = float(system.normwise(done.state, b).max()), _STABLE * math.sqrt(len(b)) * EPS
    if error <= allowed:
        return len(done.history) - 1, ""
    return -50, f"the backward error stayed at {error:.1e}, {allowed:.1e} is what double precision allows"


def _out_of_range(last: Attempt, y: torch.Tensor, x: torch.Tensor) -> str:
    """Return why x does not hold the solution y of the equilibrated system; "" if it does.

    Single entries may underflow beside larger ones, where the residual does not tell; a column that is all
    below the normal numbers is lost.
    """
    sizes = x.abs().amax(0)
    if not bool(torch.isfinite(sizes).all()):
        return _OVERFLOW
    lost = (sizes < torch.finfo(torch.float64).tiny) & (y.abs().amax(0) > 0)
    change = last.system.lost(y, x, last.top)
    if not bool(lost.any()) and bool((change != 0).any()):
        by = last.system.residuals(change, torch.zeros_like(last.b))[1]
        lost = by > 2 * EPS * last.system.residuals(y, last.b)[1]
    return _UNDERFLOW if bool(lost.any()) else ""


def _failed(last: Attempt, x: torch.Tensor, reason: str) -> Attempt:
    """Return the attempt, marked as failed: its solution x is outside the range of double precision."""
    nothing = torch.full(x.shape[1:], math.nan, dtype=torch.float64, device=x.device)
    stage = replace(last.stage, code=-5, reason=reason)
    return replace(last, stage=stage, state=State(x, torch.full_like(x, math.nan), nothing, nothing))


def _warning(last: Attempt, x: torch.Tensor, judged: bool) -> str:
    """Return the warning for an untrustworthy solution; "" if there is none.

    The evidence of a ``judged`` one needs the norm of the inverse anyway, and tells the same.
    """
    assert last.y is not None
    if not bool(torch.isfinite(last.y.abs()).all()):
        return f"A is singular to working precision: {_OVERFLOW}"
    doubtful = last.stage.inner > 0
    searched = doubtful and (judged or last.factored.inverse is not None)
    if searched or not last.factored.harmless(doubtful=doubtful, most_inner=most_inner(len(x))):
        last.factored.inverse_norm(doubtful=doubtful)
        if not math.isfinite(last.factored.condition):
            return (
                "A is singular to working precision: its condition, rows and columns equilibrated, is"
                f" {condition.certain(len(x)):.0e} or more, and no digit of x is certain"
            )
    if not bool(torch.isfinite(x.abs()).all()):
        return _OVERFLOW
    return "" if last.stage.code >= 0 else f"x is not a solution: {last.stage.reason}"
