"""Iterative refinement: classical, and by GMRES with the factors as preconditioner."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from fewbits.solvers.dense.column_basis import ColumnBasis
from fewbits.solvers.dense.factors import Factors
from fewbits.solvers.dense.system import State, System
from fewbits.solvers.flexible_gmres import flexible_gmres

MOST_STEPS = 50  # of refinement, as in cuSOLVER; LAPACK's DSGESV takes 30
MOST_INNER = 50  # iterations of GMRES in one step
FAIR_TRIAL = 8  # iterations before GMRES is judged: on clustered spectra the first few show nothing
EPS = 2.0**-53
_AS_GOOD = 2 * EPS  # error at which refinement may end if it stops falling
_LEAST_CONTRACTION = {
    "classical": 0.5,
    "classical_gmres": 0.1,
    "gmres": 0.0,
}  # largest error ratio of a step
_LEAST_GOAL = 1e-10  # smallest reduction of the residual asked of one run of GMRES
_TOGETHER = 32  # right-hand sides that GMRES solves at once, to bound its memory

Apply = Callable[[torch.Tensor], torch.Tensor]
Watch = Callable[[int, float], None]


@dataclass
class Refinement:
    """Where refinement ended and how; ``code``, ``inner``, ``reason`` and ``history`` as in a Stage."""

    state: State
    code: int = 0
    inner: int = 0
    reason: str = ""
    history: list[float] = field(default_factory=list)


def refine(
    system: System,
    b: torch.Tensor,
    first: torch.Tensor,
    factors: Factors,
    refinement: str,
    *,
    enough: float = EPS,
    strictly: bool = True,
    most_inner: int | None = None,
    watch: Watch | None = None,
) -> Refinement:
    """Refine a solution until every entry of the residual is as small as double precision allows.

    Refinement converges when the componentwise backward error of every right-hand side is at most 2^-53,
    which rounding the exact solution may cause, or at most twice that if it stops falling.

    Args:
        system: A.
        b: (n, k), of A's dtype.
        first: (n, k), the solution that the factors give for b.
        factors: approximate factors of A.
        refinement: ``classical``, ``gmres``, or ``classical_gmres``: classical while each step reduces the
            residual tenfold, then GMRES.
        enough: largest error at which the first solution is returned unrefined.
        strictly: whether rows in which |A| |x| + |b| is only rounding error are judged like all others. False
            where the first solution is already in double precision.
        most_inner: most iterations of GMRES that are worth their time. If it would need more, refinement
            stops, but not before ``FAIR_TRIAL`` iterations.
        watch: called with the number of residuals so far and the newest error.
    """
    result = Refinement(system.state(first, b))

    def worst(state: State) -> float:
        return state.error if strictly else float(state.regular.max())

    def note(size: float) -> None:
        result.history.append(size)
        if watch is not None:
            watch(len(result.history) - 1, size)

    note(result.state.error)
    if not math.isfinite(result.state.error):
        result.code, result.reason = -5, "overflow in the first solution"
        return result
    if worst(result.state) <= enough:
        return result
    least = _LEAST_CONTRACTION[refinement]
    classical = least > 0
    for step in range(1, MOST_STEPS + 1):
        before = result.state
        if classical:
            correction = factors.solve(before.residual)
        else:
            factors = factors.wide()
            correction = _by_gmres(system, result, factors.solve, most_inner, note)
        after = system.state(before.x + correction, b)
        note(after.error)
        contraction = worst(after) / worst(before)
        if contraction < 1:
            result.state = after
        settled = not classical or not contraction <= 0.5
        if worst(result.state) <= EPS or (worst(result.state) <= _AS_GOOD and settled):
            result.code, result.reason = step, ""
            return result
        result.code = -50
        if classical and not contraction <= least:
            result.reason = f"a step of refinement left {contraction:.2g} of the residual"
            if refinement == "classical":
                return result
            classical = False
        elif not classical and (result.reason or not contraction <= 0.9):
            result.reason = (
                result.reason or f"{result.inner} iterations of GMRES left the residual at {after.error:.1e}"
            )
            return result
    result.code, result.reason = -50, f"{MOST_STEPS} steps left the residual at {result.state.error:.1e}"
    return result


def _by_gmres(
    system: System,
    result: Refinement,
    solve: Apply,
    most_inner: int | None,
    note: Callable[[float], None],
) -> torch.Tensor:
    """Return the correction for the right-hand sides that need one; count its iterations in ``result``."""
    result.reason = ""
    open_ones = (result.state.errors > EPS).nonzero()[:, 0]
    goal = max(0.25 * EPS / result.state.error, _LEAST_GOAL)
    correction = torch.zeros_like(result.state.x)
    for part in torch.split(open_ones, _TOGETHER):
        residual = result.state.residual.index_select(1, part)
        size = torch.linalg.vector_norm(residual, dim=0)

        def go_on(iteration: int, residuals: torch.Tensor, _: object, size: torch.Tensor = size) -> bool:
            left = float(torch.where(size > 0, residuals / size, 0.0).max())
            if left <= goal:
                return False
            note(result.state.error * left)
            if most_inner is None or iteration < FAIR_TRIAL:
                return True
            if left ** ((most_inner - result.inner) / iteration) <= goal:  # fast enough
                return True
            result.reason = (
                f"{iteration} iterations of GMRES left {left:.1g} of the residual; {most_inner} are worth it"
            )
            return False

        basis = ColumnBasis(system, residual, size, solve, MOST_INNER)
        found, taken = flexible_gmres(basis, size, residual.dtype, maxiter=MOST_INNER, go_on=go_on)
        correction.index_copy_(1, part, found)
        result.inner += taken
    return correction
