"""The half of ``fewbits solve`` that iterates."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fewbits.cli.progress import Report, progress_bar

if TYPE_CHECKING:
    from fewbits.records import SolveScore

SOLVERS = ("cg", "bicgstab", "gmres", "gcr")
_SIDE = 40  # cells of the demonstration in each direction


def krylov_scores(
    name: str, a: Any, b: Any, solver: str, precisions: list[str], tol: float
) -> tuple[list[SolveScore], Any]:
    """Solve in each precision; the solution is that of the first.

    Args:
        name: of the matrix.
        a: a SciPy sparse matrix or an operator.
        b: (n,) numpy.ndarray.
        solver: one of :data:`SOLVERS`.
        precisions: see :func:`fewbits.solvers.krylov_precision`.
        tol: of the true residual, over |b|.
    """
    from dataclasses import replace

    from fewbits import solvers

    method: Callable[..., Any] = getattr(solvers, solver)
    found = []
    with progress_bar() as show:
        for one in precisions:
            found.append(_score(name, a, b, solver, method, one, tol, show))
    scores = [score for score, _ in found]
    double = [score.seconds for score in scores if score.precision == "double"]
    if double:
        scores = [replace(score, of_double=double[0] / score.seconds) for score in scores]
    return scores, found[0][1]


def _score(
    name: str,
    a: Any,
    b: Any,
    solver: str,
    method: Callable[..., Any],
    one: str,
    tol: float,
    show: Report,
) -> tuple[SolveScore, Any]:
    from fewbits.records import SolveScore, Stage

    def watch(iteration: int, residual: float) -> None:
        done = math.log(max(residual, tol)) / math.log(tol) if residual < 1 else 0.0
        show(f"{one}: {solver}", done, 1, f"iteration {iteration}, residual {residual:.1e}")

    began = time.perf_counter()
    result = method(a, b, precision=one, rtol=tol, watch=watch)
    seconds = time.perf_counter() - began
    left = f"the true residual stayed at {result.residual:.1e}" if not result.converged else ""
    stages = tuple(
        Stage(
            path,
            solver,
            (result.iterations if result.converged else -50) if last else -50,
            0,
            0.0,
            seconds if last else 0.0,
            left if last else "its true residual stayed above the one asked for",
            result.history if last else (),
        )
        for path, last in ((p, i == len(result.path) - 1) for i, p in enumerate(result.path))
    )
    score = SolveScore(
        name,
        len(b),
        one,
        stages,
        result.iterations,
        result.residual,
        math.nan,
        seconds,
        None,
        tol,
        "|b - A x| / |b|",
    )
    return score, result.x


def demonstration() -> tuple[Any, Any]:
    """Return a Poisson problem with variable coefficients, and a right-hand side."""
    import numpy as np

    from fewbits.solvers import Stencil

    rng = np.random.default_rng(0)
    a = Stencil.poisson(np.exp(rng.standard_normal((_SIDE, _SIDE, _SIDE)) / 2))
    return a, rng.standard_normal(a.n)
