"""One right-hand side and the state of its solution: the bookkeeping that all Krylov solvers share."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.records import Stage
from fewbits.solvers.krylov.stopping import MARGIN, Stopping
from fewbits.solvers.operators.operator import Operator
from fewbits.solvers.operators.vectors import exponent_of, real_number, times_power
from fewbits.solvers.solution import Solution
from fewbits.typing import Watch

MOST_STALLS = 10  # true residuals without progress after which an attempt ends
STALL = 1 - 1e-4
AGREED = 1.01  # ratio of the true residual to the recurrence's up to which they agree

Partial = Callable[[], torch.Tensor]
DEFAULT = Stopping()


class Problem:
    """A y = b, with A and b scaled by powers of two so that nothing overflows; x is y 2^exponent.

    Attributes:
        a: the operator, scaled.
        preconditioner: an operator, or None.
        b: (n,) float64 or complex128, its largest magnitude between 1/2 and 1.
        size: |b|.
        allowed: the largest true residual of a converged solution.
        target: the residual at which loops stop, a little below ``allowed``.
        y: the solution so far, of b's dtype.
        claimed: the norm of the residual according to the recurrence.
        history: ``claimed`` after each iteration.
        updates: how often the true residual was computed.
        best: the y with the smallest merit of those whose true residual is known.
        least: the merit of ``best``; here the norm of its residual.
    """

    def __init__(
        self,
        a: Operator,
        b: torch.Tensor,
        *,
        x0: torch.Tensor | None = None,
        exponent: int = 0,
        preconditioner: Operator | None = None,
        stopping: Stopping = DEFAULT,
        callback: Callable[[torch.Tensor], None] | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.a, self.preconditioner, self.rtol = a, preconditioner, stopping.rtol
        self.callback, self.watch = callback, watch
        of_b = exponent_of(a.peak(b))
        self.b, self.exponent = times_power(b, -of_b), of_b + exponent
        self.size = self.least = self.claimed = a.norm(self.b)
        self.allowed = stopping.residual(self.size, of_b)
        self.target = MARGIN * self.allowed
        self.maxiter = max(10 * (a.unknowns or a.n), 100) if stopping.maxiter is None else stopping.maxiter
        self.y = b.new_zeros(a.n)
        self.best, self._r = self.y.clone(), torch.zeros_like(self.b)
        self.history, self.updates, self._first, self._stalls = list[float](), 0, 0, 0
        self._stage = ""
        self._last = math.inf
        if x0 is not None and self.size > 0:
            self._begin_from(times_power(x0, -self.exponent))

    def _begin_from(self, y: torch.Tensor) -> None:
        """Start from y, or from zero if the residual of y overflows."""
        least = self.a.norm(self.b - self.a.exact(y))
        if math.isfinite(least):
            self.best, self.least, self.claimed = y, least, least

    @property
    def goes_on(self) -> bool:
        """Whether an attempt should iterate once more."""
        left = len(self.history) - self._first < self.maxiter
        return self.claimed > self.target and left and self._stalls <= MOST_STALLS

    def note(self, residual: float, partial: Partial) -> None:
        """Record the recurrence's residual after an iteration; ``partial`` returns the correction to y."""
        self.claimed = residual
        self.history.append(residual)
        if self.watch is not None:
            self.watch(self._stage, len(self.history), residual / self.size)
        if self.callback is not None:
            self.callback(times_power(self.y + partial(), self.exponent))

    def add(self, x: torch.Tensor, *, swings: bool = False) -> torch.Tensor:
        """Add x to the solution, and return b - A y in double precision; the next call overwrites it.

        A residual of a method that ``swings`` may grow for a while: there a stall is one that the recurrence
        did not tell. Elsewhere no progress is one, since the same steps would follow.
        """
        told = self.claimed
        self.y = self.y + x
        r = torch.sub(self.b, self.a.exact(self.y), out=self._r)
        self.claimed = self.a.norm(r)
        merit = self.merit(r)
        self._stalls += not (merit < STALL * self._last or (swings and self.claimed <= AGREED * told))
        self._last = merit
        self._keep(merit)
        return r

    def improve(self, x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        """Add x if the residual is then smaller than ``r``, the one without x; return the residual."""
        trial = self.b - self.a.exact(self.y + x)
        size = self.a.norm(trial)
        if not size < self.claimed:
            return r
        self.y, self.claimed, self._last = self.y + x, size, size
        self._keep(size)
        return trial

    def finish(self, x: torch.Tensor) -> None:
        """Add the correction that a loop still holds at its end; ``claimed`` stays as it was."""
        claimed = self.claimed
        if self.a.peak(x) > 0:
            self.add(x)
            self.claimed = claimed

    def merit(self, r: torch.Tensor) -> float:
        """Return the number by which solutions are ranked: the norm of the residual."""
        del r
        return self.claimed

    def _keep(self, merit: float) -> None:
        if merit < self.least and (self.claimed <= self.allowed or self._is_in_range()):
            self.best, self.least = self.y, merit

    def _is_in_range(self) -> bool:
        """Return whether y 2^exponent is: with a singular A, y may grow along null vectors without bound."""
        size = self.a.peak(self.y)
        return math.isfinite(size) and exponent_of(size) + self.exponent <= sys.float_info.max_exp

    def begin(self, stage: str, residual: float) -> None:
        """Start an attempt, called ``stage``, from the best solution, whose true residual is given."""
        self._stage, self._first, self._stalls, self._last = stage, len(self.history), 0, math.inf
        self.y, self.claimed = self.best, residual

    def return_to(self, best: torch.Tensor) -> None:
        """Restore the best solution from before an attempt."""
        self.best, self.least = best, math.inf

    def stage_history(self) -> tuple[float, ...]:
        """Return the recurrence's residuals of the attempt, over |b|."""
        return tuple(h / self.size for h in self.history[self._first :])

    def judge(self) -> tuple[float, bool]:
        """Return the norm of the residual of the x that is returned, and whether that is small enough."""
        true = self.a.norm(self.judged())
        return true, true <= self.allowed

    def judged(self) -> torch.Tensor:
        """Return the residual of the x that is returned, in the units of the given system."""
        return self.a.residual(self.b, as_returned(self.a, self.x, self.exponent))

    @property
    def x(self) -> torch.Tensor:
        """Return the best solution in the units of the given system."""
        return times_power(self.best, self.exponent)

    def solution(self, true: float, converged: bool, stages: tuple[Stage, ...]) -> Solution[torch.Tensor]:
        """Return the best solution with its evidence; ``true`` is the norm of its residual."""
        size = self.size or 1.0
        return Solution(
            self.x,
            converged,
            true / size,
            len(self.history),
            stages,
            tuple(h / size for h in self.history),
            claimed=self.claimed / size,
            reliable_updates=self.updates,
        )


def as_returned(a: Operator, x: torch.Tensor, exponent: int) -> torch.Tensor:
    """Return x 2^-exponent for the x that is returned: what left its range is not in it.

    Raises:
        DataError: x lies beyond the largest float64.
    """
    if not math.isfinite(a.peak(x)):  # over all processes, so that all raise
        raise DataError(
            "the solution lies beyond the largest float64; divide b by a power of two, and multiply x by it"
        )
    return times_power(x, -exponent)


def read_delta(delta: float | None) -> float | None:
    """Return the factor of reliable updates in double precision.

    Raises:
        ArgumentError: it is not between 0 and 1.
    """
    if delta is None:
        return None
    factor = real_number(delta)
    if not 0 < factor < 1:
        raise ArgumentError(f"delta={delta!r}; expected a factor between 0 and 1, or None")
    return factor
