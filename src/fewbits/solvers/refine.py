"""Iterative refinement: classical, and by GMRES with the factors as preconditioner."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from fewbits.solvers.factors import Factors
from fewbits.solvers.flexible_gmres import flexible_gmres

MOST_STEPS = 50  # of refinement, as in cuSOLVER; LAPACK's DSGESV takes 30
MOST_INNER = 50  # iterations of GMRES in one of them
FAIR_TRIAL = 8  # iterations before GMRES is judged: on clustered spectra the first few show nothing
EPS = 2.0**-53
_LEAST_CONTRACTION = {"classical": 0.5, "classical-gmres": 0.1, "gmres": 0.0}  # of a classical step
_LEAST_GOAL = 1e-10  # of one round of GMRES
_TOGETHER = 32  # right-hand sides whose directions GMRES holds at once

Apply = Callable[[torch.Tensor], torch.Tensor]
Watch = Callable[[int, float], None]


@dataclass(frozen=True)
class State:
    """A solution, (n, k), its residual b - A x, and max |r| / (|A| max |x|) of the worst right-hand side."""

    x: torch.Tensor
    residual: torch.Tensor
    sizes: torch.Tensor  # (k,)

    @property
    def size(self) -> float:
        """The worst of the relative residuals; nan where something overflowed."""
        return float(self.sizes.max())


@dataclass
class Refined:
    """Where refinement ended and how; ``code``, ``inner``, ``reason`` and ``history`` as in a Stage."""

    state: State
    code: int = 0
    inner: int = 0
    reason: str = ""
    history: list[float] = field(default_factory=list)


def state_of(a: torch.Tensor, norm: float, x: torch.Tensor, b: torch.Tensor) -> State:
    """Return how well x solves A x = b."""
    r = b - a @ x
    sizes, scales = r.abs().amax(0), norm * x.abs().amax(0)
    return State(x, r, torch.where(sizes == 0, 0.0, sizes / scales))


def refine(
    a: torch.Tensor,
    norm: float,
    b: torch.Tensor,
    factors: Factors,
    refinement: str,
    *,
    most_inner: int | None = None,
    watch: Watch | None = None,
) -> Refined:
    """Refine ``solve(b)`` until it is as good as double precision makes it.

    Converged is every right-hand side with max |r| <= sqrt(n) max |x| |A| eps, infinity norms (LAPACK's
    DSGESV).

    Args:
        a: (n, n) float64 or complex128.
        norm: |A|, its infinity norm.
        b: (n, k), of a's dtype.
        factors: of about A.
        refinement: ``classical``, ``gmres``, or ``classical-gmres``: classical as long as each step takes a
            digit off the residual, then GMRES.
        most_inner: iterations of GMRES that are worth their time; where it will take more it is given up,
            but not before ``FAIR_TRIAL``.
        watch: called with the number of residuals so far and the newest.
    """
    bound = math.sqrt(len(a)) * EPS
    found = Refined(state_of(a, norm, factors.solve(b), b))

    def note(size: float) -> None:
        found.history.append(size)
        if watch is not None:
            watch(len(found.history) - 1, size)

    note(found.state.size)
    if not math.isfinite(found.state.size):
        found.code, found.reason = -5, "overflow in the first solution"
        return found
    least = _LEAST_CONTRACTION[refinement]
    classical = least > 0
    for step in range(MOST_STEPS + 1):
        if found.state.size <= bound:
            found.code, found.reason = step, ""
            return found
        before = found.state
        if classical:
            correction = factors.solve(before.residual)
        else:
            factors = factors.wide()
            correction = _by_gmres(a, found, factors.solve, bound, most_inner, note)
        after = state_of(a, norm, before.x + correction, b)
        note(after.size)
        contraction = after.size / before.size
        if contraction < 1:
            found.state = after
        if after.size <= bound:
            continue
        found.code = -50
        if classical and not contraction <= least:
            found.reason = f"a step of refinement left {contraction:.2g} of the residual"
            if refinement == "classical":
                return found
            classical = False
        elif not classical and (found.reason or not contraction <= 0.9):
            found.reason = (
                found.reason or f"{found.inner} iterations of GMRES left the residual at {after.size:.1e}"
            )
            return found
    found.code, found.reason = -50, f"{MOST_STEPS} steps left the residual at {found.state.size:.1e}"
    return found


def _by_gmres(
    a: torch.Tensor,
    found: Refined,
    solve: Apply,
    bound: float,
    most_inner: int | None,
    note: Callable[[float], None],
) -> torch.Tensor:
    """Return the correction of the right-hand sides that need one; count and judge its iterations."""
    found.reason = ""
    open_ones = (found.state.sizes > bound).nonzero()[:, 0]
    goal = max(0.25 * bound / found.state.size, _LEAST_GOAL)
    correction = torch.zeros_like(found.state.x)
    for part in torch.split(open_ones, _TOGETHER):

        def go_on(iteration: int, left: float) -> bool:
            note(found.state.size * left)
            if most_inner is None or iteration < FAIR_TRIAL:
                return True
            expected = iteration * math.log(goal) / math.log(left) if left < 1 else math.inf
            if found.inner + expected <= most_inner:
                return True
            found.reason = (
                f"{iteration} iterations of GMRES left {left:.1g} of the residual: {expected:.0f} would be"
                f" needed, {most_inner} are worth it"
            )
            return False

        correction[:, part], taken = flexible_gmres(
            a, found.state.residual[:, part], solve, tolerance=goal, most=MOST_INNER, go_on=go_on
        )
        found.inner += taken
    return correction
