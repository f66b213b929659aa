"""Measures a linear system in each precision: accuracy, stages and time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fewbits import solvers
from fewbits.errors import ArgumentError, FewbitsError
from fewbits.records import SolveScore, Stage
from fewbits.solvers import Operator, Solution, Stencil
from fewbits.solvers.operators import LinearMap
from fewbits.typing import NumpyArray, Progress, Watch

KRYLOV_SOLVERS = ("cg", "minres", "bicgstab", "gmres", "gcr")
"""The iterative solvers; the other one is ``direct``."""

RESTARTED = ("gmres", "gcr")
"""The iterative solvers that take ``restart``."""

_GOAL = 2.0**-53
_DENSE_UNKNOWNS = 1200  # of the demonstration system
_SIDE = 40  # cells in each direction of the sparse demonstration system

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MeasuredSystem:
    """One system solved in several precisions.

    Attributes:
        scores: one for each precision, in order.
        x: (n,) or (n, k), the solution in the first precision that gave one.
    """

    scores: tuple[SolveScore, ...]
    x: NumpyArray

    @property
    def failure(self) -> str:
        """Why the first precision gave no solution; "" if it gave one."""
        stages = self.scores[0].stages
        return stages[-1].reason if stages and stages[-1].code < 0 else ""


def measure_system(
    A: LinearMap,
    b: NumpyArray,
    precisions: Sequence[str] = ("auto",),
    *,
    solver: str = "direct",
    name: str = "a matrix",
    rtol: float = 1e-10,
    atol: float = 0.0,
    maxiter: int | None = None,
    restart: int | None = None,
    assume_a: str = "gen",
    progress: Progress | None = None,
) -> MeasuredSystem:
    """Solve A x = b in each precision, even if one of them raises, and measure accuracy and time.

    Args:
        A: (n, n): an array for ``direct``, else anything that a Krylov solver accepts.
        b: (n,) or (n, k).
        precisions: names for :func:`fewbits.solve`, or for an iterative solver those of
            :func:`fewbits.solvers.krylov_precision`. If several include double precision, each score has the
            speedup over it.
        solver: ``direct``, or one of :data:`KRYLOV_SOLVERS`.
        name: of the matrix, for the records.
        rtol: tolerance for the relative residual of an iterative solver.
        atol: tolerance for its absolute residual; the larger bound counts.
        maxiter: its most iterations in each precision; None for max(10 n, 100).
        restart: only for :data:`RESTARTED`; None for the solver's default.
        assume_a: only for ``direct``: ``gen`` or ``pos``.
        progress: called as ``progress(what, done, total)``.

    Raises:
        ArgumentError: no precision, or no such solver.
        FewbitsError: the error of the solver, if it raises in every precision.
    """
    if solver not in ("direct", *KRYLOV_SOLVERS):
        raise ArgumentError(f"solver={solver!r}; expected direct, {', '.join(KRYLOV_SOLVERS)}")
    if not precisions:
        raise ArgumentError("no precisions to measure; give at least one, for example 'auto'")
    show = progress or _unseen
    if solver == "direct":
        solvers.factorize(np.eye(64), "fp32").solve(
            np.ones(64)
        )  # warm-up: starts threads and loads libraries
        goal, measure = _GOAL, "max |b - A x| / (|A| |x| + |b|)"
    else:
        size = float(np.linalg.norm(b))
        goal, measure = max(rtol, atol / size if size else 0.0), "|b - A x| / |b|"

    def solve(precision: str) -> Solution[NumpyArray]:
        if solver == "direct":
            return _factorize_and_solve(A, b, precision, assume_a, show)
        method: Callable[..., Solution[NumpyArray]] = getattr(solvers, solver)
        watch = _iterations(f"{precision}: {solver}", goal, show)
        restarted = {} if restart is None else {"restart": restart}
        return method(
            A, b, rtol=rtol, atol=atol, maxiter=maxiter, precision=precision, watch=watch, **restarted
        )

    scores: list[SolveScore] = []
    solutions, errors = list[Solution[NumpyArray]](), list[FewbitsError]()
    for precision in precisions:
        began = time.perf_counter()
        try:
            solution = solve(precision)
        except FewbitsError as refusal:
            method = "-" if solver == "direct" else solver
            stage = Stage(precision, method, -50, 0, time.perf_counter() - began, 0.0, str(refusal), ())
            solution = Solution(b, False, stages=(stage,))
            errors.append(refusal)
        else:
            solutions.append(solution)
        seconds = time.perf_counter() - began
        error = solution.backward_error if solver == "direct" else solution.residual
        scores.append(
            SolveScore(
                name,
                len(b),
                precision,
                solution.stages,
                solution.iterations,
                error,
                solution.condition,
                seconds,
                None,
                goal,
                measure,
                solution.componentwise_error,
                solution.forward_error,
            )
        )
        if len(precisions) > 1:
            show("precisions", len(scores), len(precisions))
    if not solutions:
        raise errors[0]
    return MeasuredSystem(_with_speed(scores), solutions[0].x)


def random_system() -> tuple[Reals, Reals]:
    """Return a dense random matrix with normal entries, and its product with a vector of ones."""
    a = np.random.default_rng(0).standard_normal((_DENSE_UNKNOWNS, _DENSE_UNKNOWNS))
    return a, a @ np.ones(len(a))


def poisson_system() -> tuple[Operator, Reals]:
    """Return a Poisson problem with variable coefficients on a grid, and a random right-hand side."""
    rng = np.random.default_rng(0)
    a = Stencil.poisson(np.exp(rng.standard_normal((_SIDE, _SIDE, _SIDE)) / 2))
    return a, rng.standard_normal(a.n)


def _factorize_and_solve(
    A: LinearMap, b: NumpyArray, precision: str, assume_a: str, show: Progress
) -> Solution[NumpyArray]:
    factorizing, first = f"{precision}: factorizing", 1.0

    def watch(stage: str, iteration: int, size: float) -> None:
        nonlocal first
        if iteration == 0:
            first = size
            show(factorizing, 1, 1)
        far = math.log(first / _GOAL) if first > _GOAL else 0.0
        done = 1 - math.log(size / _GOAL) / far if far and size > _GOAL else float(size <= _GOAL)
        show(f"{precision}: refining in {stage}", max(done, 0.0), 1)

    show(factorizing, 0, 1)
    return solvers.factorize(np.asarray(A), precision, assume_a=assume_a).solve(b, watch=watch)


def _iterations(what: str, goal: float, show: Progress) -> Watch:
    def watch(_: str, iteration: int, residual: float) -> None:
        done = math.log(max(residual, goal)) / math.log(goal) if 0 < residual < 1 else float(residual == 0)
        show(what, done, 1)

    return watch


def _with_speed(scores: list[SolveScore]) -> tuple[SolveScore, ...]:
    """Return the scores with their speedup over double precision, if that was measured."""
    double = [score.seconds for score in scores if score.precision in ("fp64", "double")]
    if len(scores) == 1 or not double:
        return tuple(scores)
    return tuple(replace(score, of_double=double[0] / score.seconds) for score in scores)


def _unseen(what: str, done: float, total: float) -> None:
    """Show nothing."""
