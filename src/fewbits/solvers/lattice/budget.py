"""One bound on the iterations of all precisions that a solver of the lattice tries."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch

from fewbits.solvers.precision import KrylovPrecision
from fewbits.solvers.solution import Solution
from fewbits.typing import Watch


class Krylov(Protocol):
    """A Krylov solver with its system and all options but these."""

    def __call__(
        self,
        *,
        x0: torch.Tensor | None,
        maxiter: int | None,
        precision: KrylovPrecision,
        watch: Watch | None,
    ) -> Solution[torch.Tensor]:
        """Return the best x."""
        ...


def solve_in_turn(
    solver: Krylov,
    x0: torch.Tensor | None,
    tried: tuple[KrylovPrecision, ...],
    maxiter: int | None,
    watch: Watch | None,
) -> Solution[torch.Tensor]:
    """Return the best x; each precision starts from that of the one before, until one converges.

    Args:
        solver: called for each precision.
        x0: initial guess; None for zero.
        tried: the precisions, at least one.
        maxiter: bounds the sum of all iterations; None for the solver's own bound on each.
        watch: called after each iteration; they are counted through.
    """
    solution = solver(x0=x0, maxiter=maxiter, precision=tried[0], watch=watch)
    for precision in tried[1:]:
        done = solution.iterations
        if solution.converged or (maxiter is not None and done >= maxiter):
            break
        more = solver(
            x0=solution.x,
            maxiter=None if maxiter is None else maxiter - done,
            precision=precision,
            watch=None if watch is None else shifted(watch, done),
        )
        solution = replace(
            more,
            iterations=done + more.iterations,
            stages=solution.stages + more.stages,
            history=solution.history + more.history,
            reliable_updates=solution.reliable_updates + more.reliable_updates,
        )
    return solution


def shifted(watch: Watch, done: int, scale: float = 1.0) -> Watch:
    """Return a watcher that counts from ``done``, residuals times ``scale``."""
    return lambda stage, iteration, residual: watch(stage, done + iteration, scale * residual)
