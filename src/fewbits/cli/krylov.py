"""The half of ``fewbits solve`` that iterates."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fewbits.cli.progress import Report, progress_bar
from fewbits.errors import FewbitsError

if TYPE_CHECKING:
    from fewbits.records import SolveScore, Stage

SOLVERS = ("cg", "minres", "bicgstab", "gmres", "gcr")
_SIDE = 40  # cells of the demonstration in each direction


def krylov_scores(
    name: str, a: Any, b: Any, solver: str, precisions: list[str], rtol: float
) -> tuple[list[SolveScore], Any]:
    """Solve in each precision, also after one failed; the solution is that of the first that gave one.

    Args:
        name: of the matrix.
        a: a SciPy sparse matrix or an operator.
        b: (n,) or (n, k) numpy.ndarray.
        solver: one of :data:`SOLVERS`.
        precisions: see :func:`fewbits.solvers.krylov_precision`.
        rtol: of the true residual, over |b|.

    Raises:
        FewbitsError: what the solver raises, where it does in every precision.
    """
    from dataclasses import replace

    from fewbits import solvers
    from fewbits.records import SolveScore

    method: Callable[..., Any] = getattr(solvers, solver)
    scores, solutions, errors = list[SolveScore](), [], []
    with progress_bar() as show:
        for one in precisions:
            began = time.perf_counter()
            try:
                result = method(a, b, precision=one, rtol=rtol, watch=_watcher(one, solver, rtol, show))
            except FewbitsError as error:
                errors.append(error)
                stages: tuple[Stage, ...] = (_refused(one, solver, str(error)),)
                iterations, residual = 0, math.nan
            else:
                solutions.append(result.x)
                stages, iterations, residual = result.stages, result.iterations, result.residual
            seconds = time.perf_counter() - began
            measured = iterations, residual, math.nan, seconds, None, rtol, "|b - A x| / |b|"
            scores.append(SolveScore(name, len(b), one, stages, *measured))
    if not solutions:
        raise errors[0]
    double = [score.seconds for score in scores if score.precision == "double"]
    if double:
        scores = [replace(score, of_double=double[0] / score.seconds) for score in scores]
    return scores, solutions[0]


def _refused(precision: str, solver: str, reason: str) -> Stage:
    from fewbits.records import Stage

    return Stage(precision, solver, -50, 0, 0.0, 0.0, reason, ())


def _watcher(one: str, solver: str, rtol: float, show: Report) -> Callable[[int, float], None]:
    def watch(iteration: int, residual: float) -> None:
        done = math.log(max(residual, rtol)) / math.log(rtol) if 0 < residual < 1 else float(residual == 0)
        show(f"{one}: {solver}", done, 1, f"iteration {iteration}, residual {residual:.1e}")

    return watch


def demonstration() -> tuple[Any, Any]:
    """Return a Poisson problem with variable coefficients, and a right-hand side."""
    import numpy as np

    from fewbits.solvers import Stencil

    rng = np.random.default_rng(0)
    a = Stencil.poisson(np.exp(rng.standard_normal((_SIDE, _SIDE, _SIDE)) / 2))
    return a, rng.standard_normal(a.n)
