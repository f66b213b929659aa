"""When to recompute the true residual: two triggers, and a loop over cycles that start from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch

from fewbits.solvers.krylov.problem import Problem

DOUBLE = 2.0**-53


class Trigger(Protocol):
    """Decides after each iteration whether to recompute the true residual."""

    def restart(self, residual: float, solution: float) -> None:
        """Start anew, given the norms of the true residual and of the solution."""
        ...

    def fires(self, residual: float, step: float) -> bool:
        """Return whether to update, given the recurrence's residual and the step length |alpha| |p|."""
        ...


class Drop:
    """Fires when the residual has fallen by a factor since the last update, or since its largest value.

    Sleijpen and van der Vorst, Reliable updated residuals in hybrid Bi-CG methods, 1996; QUDA's ``delta``.
    """

    def __init__(self, delta: float) -> None:
        self.delta = delta
        self.largest = 0.0

    def restart(self, residual: float, solution: float) -> None:
        """Start anew, given the norms of the true residual and of the solution."""
        del solution
        self.largest = residual

    def fires(self, residual: float, step: float) -> bool:
        """Return whether to update, given the recurrence's residual and the step length |alpha| |p|."""
        del step
        self.largest = max(self.largest, residual)
        return residual < self.delta * self.largest


class Deviation:
    """Fires when a bound on the error of the recurrence reaches the square root of the unit roundoff.

    Van der Vorst and Ye, Residual replacement strategies for Krylov subspace iterative methods for the
    convergence of true residuals, SIAM J. Sci. Comput. 22, 2000; QUDA's alternative trigger.

    Args:
        roundoff: unit roundoff of the stored vectors.
        norm: an estimate of |A|.
    """

    def __init__(self, roundoff: float, norm: float) -> None:
        self.roundoff, self.norm = roundoff, norm
        self.start = self.deviation = self.before = self.solution = 0.0

    def restart(self, residual: float, solution: float) -> None:
        """Start anew, given the norms of the true residual and of the solution."""
        self.solution, self.before = solution, residual
        self.start = self.deviation = DOUBLE * (residual + self.norm * solution)

    def fires(self, residual: float, step: float) -> bool:
        """Return whether to update, given the recurrence's residual and the step length |alpha| |p|."""
        old, root = self.deviation, math.sqrt(self.roundoff)
        self.solution += step
        self.deviation += self.roundoff * residual + DOUBLE * self.norm * self.solution
        was_small = old <= root * self.before
        self.before = residual
        return was_small and self.deviation > root * residual and self.deviation > 1.1 * self.start


def refine(problem: Problem, cycle: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Add the corrections of ``cycle``, called with the true residual, until the problem is finished."""
    x = torch.zeros_like(problem.y)
    while True:
        r = problem.add(x)
        if not problem.goes_on or not math.isfinite(problem.claimed):
            return
        problem.updates += bool(problem.history)
        x = cycle(r)
