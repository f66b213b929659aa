"""H x = b with an indefinite H, by conjugate gradients on H^2 x = H b."""

from __future__ import annotations

import torch

from fewbits.records import Stage
from fewbits.solvers.krylov import KrylovResult, cg
from fewbits.solvers.krylov.problem import Watcher
from fewbits.solvers.lattice.normal import Normal
from fewbits.solvers.operators.vectors import exponent_of, times_power
from fewbits.solvers.precision import KrylovPrecision

# On most fields |b - H x| over |b| ends 2 to 3 times above that of H^2 x = H b. Where it is more, the rest is
# solved for, at most so many times.
MARGIN, ROUNDS = 0.25, 6


def solve_through_square(
    a: Normal,
    b: torch.Tensor,
    *,
    precision: str | KrylovPrecision,
    rtol: float,
    delta: float | None,
    maxiter: int | None,
    watch: Watcher | None,
) -> KrylovResult:
    """Return the best x, with |b - H x| <= rtol |b| where it converged.

    ``claimed``, ``history`` and ``watch`` are of H^2 x = H b.
    """
    exponent = exponent_of(a.peak(b))
    b = times_power(b, -exponent)
    size = a.norm(b) or 1.0
    x = best = torch.zeros_like(b)
    rest, least = b, size
    history: list[float] = []
    stages: list[Stage] = []
    updates = rounds = 0
    first = claimed = 0.0
    while a.norm(rest) > rtol * size and rounds < ROUNDS and (maxiter is None or len(history) < maxiter):
        right = torch.from_numpy(a.hermitian(rest.numpy()))
        first = first or a.norm(right) or 1.0
        scale, done = a.norm(right) / first, len(history)
        found = cg(
            a,
            right,
            precision=precision,
            rtol=MARGIN * rtol / (a.norm(rest) / size),
            delta=delta,
            maxiter=None if maxiter is None else maxiter - done,
            watch=None if watch is None else _shifted(watch, done, scale),
        )
        x = x + found.x
        rest = b - torch.from_numpy(a.hermitian(x.numpy()))
        if a.norm(rest) < least:
            best, least = x, a.norm(rest)
        history += [scale * h for h in found.history]
        claimed = scale * found.claimed
        stages += found.stages
        updates += found.reliable_updates
        rounds += 1
        if not found.converged or delta is None:
            break
    found_x = times_power(best, exponent)
    rest = b - torch.from_numpy(a.hermitian(times_power(found_x, -exponent).numpy()))
    residual = a.norm(rest) / size
    return KrylovResult(
        found_x, residual <= rtol, residual, claimed, len(history), updates, tuple(history), tuple(stages)
    )


def _shifted(watch: Watcher, done: int, scale: float) -> Watcher:
    return lambda iteration, residual: watch(done + iteration, scale * residual)
