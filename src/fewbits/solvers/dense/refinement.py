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
MOST_INNER = 50  # iterations of GMRES in one of them
FAIR_TRIAL = 8  # iterations before GMRES is judged: on clustered spectra the first few show nothing
EPS = 2.0**-53
_AS_GOOD = 2 * EPS  # where refinement may end that goes no further
_LEAST_CONTRACTION = {"classical": 0.5, "classical_gmres": 0.1, "gmres": 0.0}  # of a classical step
_LEAST_GOAL = 1e-10  # of one round of GMRES
_TOGETHER = 32  # right-hand sides whose directions GMRES holds at once

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
    """Refine a solution until every entry of the residual is as small as double precision makes it.

    Converged is a componentwise backward error of 2^-53 in every right-hand side, which is what rounding the
    exact solution may leave, or twice that where it falls no further.

    Args:
        system: A.
        b: (n, k), of A's dtype.
        first: (n, k), what the factors give for b.
        factors: of about A.
        refinement: ``classical``, ``gmres``, or ``classical_gmres``: classical as long as each step takes a
            digit off the residual, then GMRES.
        enough: the error with which the first solution is left as it is.
        strictly: whether rows whose solution is zero but for rounding count as any other; where all that is
            left to do is to improve the solution, they do not.
        most_inner: iterations of GMRES that are worth their time; where it will take more it is given up,
            but not before ``FAIR_TRIAL``.
        watch: called with the number of residuals so far and the newest error.
    """
    found = Refinement(system.state(first, b))

    def worst(state: State) -> float:
        return state.error if strictly else float(state.regular.max())

    def note(size: float) -> None:
        found.history.append(size)
        if watch is not None:
            watch(len(found.history) - 1, size)

    note(found.state.error)
    if not math.isfinite(found.state.error):
        found.code, found.reason = -5, "overflow in the first solution"
        return found
    if worst(found.state) <= enough:
        return found
    least = _LEAST_CONTRACTION[refinement]
    classical = least > 0
    for step in range(1, MOST_STEPS + 1):
        before = found.state
        if classical:
            correction = factors.solve(before.residual)
        else:
            factors = factors.wide()
            correction = _by_gmres(system.a, found, factors.solve, most_inner, note)
        after = system.state(before.x + correction, b)
        note(after.error)
        contraction = worst(after) / worst(before)
        if contraction < 1:
            found.state = after
        settled = not classical or not contraction <= 0.5
        if worst(found.state) <= EPS or (worst(found.state) <= _AS_GOOD and settled):
            found.code, found.reason = step, ""
            return found
        found.code = -50
        if classical and not contraction <= least:
            found.reason = f"a step of refinement left {contraction:.2g} of the residual"
            if refinement == "classical":
                return found
            classical = False
        elif not classical and (found.reason or not contraction <= 0.9):
            found.reason = (
                found.reason or f"{found.inner} iterations of GMRES left the residual at {after.error:.1e}"
            )
            return found
    found.code, found.reason = -50, f"{MOST_STEPS} steps left the residual at {found.state.error:.1e}"
    return found


def _by_gmres(
    a: torch.Tensor,
    found: Refinement,
    solve: Apply,
    most_inner: int | None,
    note: Callable[[float], None],
) -> torch.Tensor:
    """Return the correction of the right-hand sides that need one; count and judge its iterations."""
    found.reason = ""
    open_ones = (found.state.errors > EPS).nonzero()[:, 0]
    goal = max(0.25 * EPS / found.state.error, _LEAST_GOAL)
    correction = torch.zeros_like(found.state.x)
    for part in torch.split(open_ones, _TOGETHER):
        residual = found.state.residual[:, part]
        size = torch.linalg.vector_norm(residual, dim=0)

        def go_on(iteration: int, residuals: torch.Tensor, _: object, size: torch.Tensor = size) -> bool:
            left = float(torch.where(size > 0, residuals / size, 0.0).max())
            if left <= goal:
                return False
            note(found.state.error * left)
            if most_inner is None or iteration < FAIR_TRIAL:
                return True
            if left ** ((most_inner - found.inner) / iteration) <= goal:  # at this pace it gets there
                return True
            found.reason = (
                f"{iteration} iterations of GMRES left {left:.1g} of the residual; {most_inner} are worth it"
            )
            return False

        basis = ColumnBasis(a, residual, size, solve, MOST_INNER)
        correction[:, part], taken = flexible_gmres(basis, size, a.dtype, maxiter=MOST_INNER, go_on=go_on)
        found.inner += taken
    return correction
