"""What a Krylov solver found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KrylovResult:
    """A solution with its evidence.

    Attributes:
        x: of b's family, float64.
        converged: whether the true residual, in float64, is at most tol |b|.
        residual: |b - A x| / |b|, computed at the end.
        claimed: the same as the recurrence has it.
        iterations: products with the narrow A, over all attempts.
        reliable_updates: times the residual was computed anew in float64.
        history: the recurrence's residual after each iteration, over |b|.
        path: the precisions tried, in order; the last one gave x.
    """

    x: Any
    converged: bool
    residual: float
    claimed: float
    iterations: int
    reliable_updates: int
    history: tuple[float, ...]
    path: tuple[str, ...]
