"""Solves H x = b with an indefinite H by conjugate gradients on H^2 x = H b."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from fewbits.records import Stage
from fewbits.solvers.krylov import Deflation, cg
from fewbits.solvers.krylov.fallback import precisions
from fewbits.solvers.krylov.problem import as_returned
from fewbits.solvers.krylov.stopping import Stopping
from fewbits.solvers.lattice.budget import shifted, solve_in_turn
from fewbits.solvers.lattice.ritz import RitzVectors, begin, gather
from fewbits.solvers.lattice.square_operator import Square
from fewbits.solvers.operators.vectors import exponent_of, times_power
from fewbits.solvers.precision import KrylovPrecision
from fewbits.solvers.solution import Solution
from fewbits.typing import Watch

# On most fields the relative residual of H x = b ends 2 to 3 times above that of H^2 x = H b. Where it is
# larger, the remaining residual is solved for again, at most this many times.
MARGIN, ROUNDS = 0.25, 6


def solve_through_square(
    a: Square,
    b: torch.Tensor,
    x0: torch.Tensor | None,
    stopping: Stopping,
    *,
    precision: str | KrylovPrecision,
    delta: float | None,
    deflation: Deflation | RitzVectors | None = None,
    callback: Callable[[torch.Tensor], None] | None,
    watch: Watch | None,
) -> Solution[torch.Tensor]:
    """Return the best x; it converged if |b - H x| <= max(rtol |b|, atol).

    ``claimed``, ``history`` and ``watch`` refer to H^2 x = H b.

    Args:
        a: the operator H^2; the gamma_5-Hermitian H of Wilson fermions, or that of staggered ones.
        b: (n,) float64, in the order of the kernels.
        x0: initial guess, like b; None for zero.
        stopping: criterion for |b - H x|; ``maxiter`` bounds the sum of all iterations.
        precision: ``auto``, a name or a :class:`KrylovPrecision`, as in :func:`fewbits.solvers.cg`.
        delta: reduction of the residual between reliable updates, or None.
        deflation: modes of ``a`` for every step, as :func:`fewbits.solvers.cg` takes them, or Ritz vectors
            that this solve uses and adds to.
        callback: called with x after each iteration.
        watch: called with the precision, the iteration and the residual over |H b|.
    """
    exponent = exponent_of(a.peak(b))
    b = times_power(b, -exponent)
    size = a.norm(b)
    x0 = x0 if size else None  # as Krylov solvers do: zero solves H x = 0
    allowed, maxiter = stopping.residual(size, exponent), stopping.maxiter
    best = torch.zeros_like(b) if x0 is None else times_power(x0, -exponent)

    def residual(x: torch.Tensor) -> torch.Tensor:
        return b - torch.from_numpy(a.hermitian(x.numpy()))

    x, rest = best, b if x0 is None else residual(best)
    least = a.norm(rest)
    if not math.isfinite(least):  # as Krylov solvers do: from zero if the residual of x0 overflows
        x = best = torch.zeros_like(b)
        rest, least = b, size
    history: list[float] = []
    stages: list[Stage] = []
    updates = rounds = 0
    tried = precisions(precision, a.preferred)
    operator, modes = begin(a, deflation)
    first = claimed = 0.0
    while least > allowed and rounds < ROUNDS and (maxiter is None or len(history) < maxiter):
        right = torch.from_numpy(a.hermitian(rest.numpy()))
        first = first or a.norm(right) or 1.0
        scale, done = a.norm(right) / first, len(history)
        solver = partial(
            cg,
            operator,
            right,
            rtol=MARGIN * allowed / a.norm(rest),
            callback=None if callback is None else _added(callback, x, exponent),
            delta=delta,
            deflation=modes,
        )
        left = None if maxiter is None else maxiter - done
        step = solve_in_turn(
            solver, None, tried, left, None if watch is None else shifted(watch, done, scale)
        )
        x = x + step.x
        rest = residual(x)
        if a.norm(rest) < least:
            best, least = x, a.norm(rest)
        history += [scale * h for h in step.history]
        claimed = scale * step.claimed
        stages += step.stages
        updates += step.reliable_updates
        rounds += 1
        if not step.converged or delta is None:
            break
    gather(deflation)
    x = times_power(best, exponent)
    least = a.norm(residual(as_returned(a, x, exponent)))
    return Solution(
        x,
        least <= allowed,
        least / (size or 1.0),
        len(history),
        tuple(stages),
        tuple(history),
        claimed=claimed,
        reliable_updates=updates,
    )


def _added(
    callback: Callable[[torch.Tensor], None], x: torch.Tensor, exponent: int
) -> Callable[[torch.Tensor], None]:
    return lambda more: callback(times_power(x + more, exponent))
