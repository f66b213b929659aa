"""H x = b with an indefinite H, by conjugate gradients on H^2 x = H b."""

from __future__ import annotations

import torch

from fewbits.solvers.krylov import KrylovResult, cg
from fewbits.solvers.krylov.problem import Watcher
from fewbits.solvers.lattice.normal import Normal
from fewbits.solvers.precision import KrylovPrecision

# On most fields |b - H x| over |b| ends 2 to 3 times above that of H^2 x = H b. Where it is more, the rest is
# solved for, at most so many times.
MARGIN, ROUNDS = 0.25, 6


def solve_through_square(
    a: Normal,
    b: torch.Tensor,
    *,
    precision: str | KrylovPrecision,
    tol: float,
    delta: float | None,
    most: int | None,
    watch: Watcher | None,
) -> KrylovResult:
    """Return x with |b - H x| <= tol |b|; ``claimed``, ``history`` and ``watch`` are of H^2 x = H b."""
    size = a.norm(b) or 1.0
    x, rest = torch.zeros_like(b), b
    history: list[float] = []
    updates = rounds = 0
    first = 0.0
    while True:
        right = torch.from_numpy(a.hermitian(rest.numpy()))
        first = first or a.norm(right) or 1.0
        scale, done = a.norm(right) / first, len(history)
        found = cg(
            a,
            right,
            precision=precision,
            tol=MARGIN * tol / (a.norm(rest) / size or 1.0),
            delta=delta,
            most=None if most is None else most - done,
            watch=None if watch is None else _shifted(watch, done, scale),
        )
        x = x + found.x
        rest = b - torch.from_numpy(a.hermitian(x.numpy()))
        history += [scale * h for h in found.history]
        updates += found.reliable_updates
        rounds += 1
        if a.norm(rest) <= tol * size or not found.converged or delta is None or rounds == ROUNDS:
            break
    residual = a.norm(rest) / size
    return KrylovResult(
        x,
        residual <= tol * (1 + 1e-6),  # of |b - M x| computed elsewhere the last digits may differ
        residual,
        scale * found.claimed,
        len(history),
        updates,
        tuple(history),
        found.path,
    )


def _shifted(watch: Watcher, done: int, scale: float) -> Watcher:
    return lambda iteration, residual: watch(done + iteration, scale * residual)
