"""When to compute the residual anew: both triggers in use, and a cycle that begins with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch

from fewbits.solvers.krylov.problem import Problem

DOUBLE = 2.0**-53


class Trigger(Protocol):
    """Decides after each iteration."""

    def restart(self, residual: float, solution: float) -> None:
        """Take the norms of the true residual and of the solution."""
        ...

    def fires(self, residual: float, step: float) -> bool:
        """Take the recurrence's residual and how far the solution has moved, |alpha| |p|."""
        ...


class Drop:
    """The residual has fallen by a factor since the last update, or since it was largest.

    Sleijpen and van der Vorst, Reliable updated residuals in hybrid Bi-CG methods, 1996; QUDA's ``delta``.
    """

    def __init__(self, delta: float) -> None:
        self.delta = delta
        self.largest = 0.0

    def restart(self, residual: float, solution: float) -> None:
        """Take the norms of the true residual and of the solution."""
        del solution
        self.largest = residual

    def fires(self, residual: float, step: float) -> bool:
        """Take the recurrence's residual and how far the solution has moved; return whether to update."""
        del step
        self.largest = max(self.largest, residual)
        return residual < self.delta * self.largest


class Deviation:
    """A bound on how far the recurrence may be from the truth has reached the root of the unit roundoff.

    Van der Vorst and Ye, Residual replacement strategies for Krylov subspace iterative methods for the
    convergence of true residuals, SIAM J. Sci. Comput. 22, 2000; QUDA's alternative trigger.

    Args:
        roundoff: of the stored vectors.
        norm: of A.
    """

    def __init__(self, roundoff: float, norm: float) -> None:
        self.roundoff, self.norm = roundoff, norm
        self.start = self.deviation = self.before = self.solution = 0.0

    def restart(self, residual: float, solution: float) -> None:
        """Take the norms of the true residual and of the solution."""
        self.solution, self.before = solution, residual
        self.start = self.deviation = DOUBLE * (residual + self.norm * solution)

    def fires(self, residual: float, step: float) -> bool:
        """Take the recurrence's residual and how far the solution has moved; return whether to update."""
        old, root = self.deviation, math.sqrt(self.roundoff)
        self.solution += step
        self.deviation += self.roundoff * residual + DOUBLE * self.norm * self.solution
        was_small = old <= root * self.before
        self.before = residual
        return was_small and self.deviation > root * residual and self.deviation > 1.1 * self.start


def refine(problem: Problem, cycle: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Let ``cycle`` return what reduces the true residual, until the problem has enough."""
    x = torch.zeros_like(problem.y)
    while True:
        r = problem.add(x)
        if not problem.goes_on or not math.isfinite(problem.claimed):
            return
        problem.updates += bool(problem.history)
        x = cycle(r)
