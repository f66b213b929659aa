"""Which precisions a Krylov solver tries, and when it falls back to double."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from fewbits.records import Stage
from fewbits.solvers.krylov.problem import Problem
from fewbits.solvers.precision import KRYLOV_PRECISIONS, KrylovPrecision, krylov_precision
from fewbits.solvers.solution import Solution

Attempt = Callable[[Problem, KrylovPrecision], None]


def precisions(precision: str | KrylovPrecision, preferred: str) -> tuple[KrylovPrecision, ...]:
    """Return the precisions to try, in order: for ``auto`` the one that the operator prefers, then double.

    Raises:
        ArgumentError: no such precision.
    """
    if precision != "auto":
        return (krylov_precision(precision),)
    first = krylov_precision(preferred)
    return (first,) if first.double else (first, KRYLOV_PRECISIONS["double"])


def solve(
    problem: Problem, method: str, planned: Sequence[KrylovPrecision], attempt: Attempt
) -> Solution[torch.Tensor]:
    """Attempt each precision until the true residual is small enough.

    Args:
        problem: holds the best solution afterwards.
        method: the solver's name, for the stages.
        planned: the precisions to try, in order.
        attempt: function that iterates on the problem in one precision.
    """
    stages: list[Stage] = []
    residual, converged = problem.judge()
    for tried in () if converged else planned:
        began, best, before = time.perf_counter(), problem.best, residual
        problem.begin(tried.name, residual)
        attempt(problem, tried)
        residual, converged = problem.judge()
        if not (converged or residual <= before):  # rounding made the loop's own comparison unreliable
            problem.return_to(best)
            residual, converged = problem.judge()
        history, relative = problem.stage_history(), residual / problem.size
        reason = "" if converged else f"the true residual stayed at {relative:.1e}"
        code, spent = len(history) if converged else -50, time.perf_counter() - began
        stages.append(Stage(tried.name, method, code, 0, 0.0, spent, reason, history))
        if converged:
            break
    return problem.solution(residual, converged, tuple(stages))
