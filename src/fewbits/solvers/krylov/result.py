"""What a Krylov solver found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fewbits.records import Stage


@dataclass(frozen=True)
class KrylovResult:
    """A solution with its evidence.

    Of several right-hand sides, (n, k), the numbers are those of all columns together: ``converged`` if all
    have, the largest residuals, and the sums of the iterations.

    Attributes:
        x: (n,) or (n, k), of b's family, float64 or complex128: of all that was found the x with the least
            residual.
        converged: whether the true residual is at most rtol |b|.
        residual: |b - A x| / |b| of that x, at the end; in long double where A's values are known.
        claimed: the same as the recurrence has it.
        iterations: of all attempts; an iteration takes one product with the narrow A (two in bicgstab and
            lsqr).
        reliable_updates: times the residual was computed anew in double precision.
        history: the recurrence's residual after each iteration, over |b|.
        stages: the attempts, each in one precision, with the time that it took.
        columns: the results of several right-hand sides; empty for one.
        optimality: of :func:`lsqr` |A^H r| / (|A| |r|), with a lower bound of |A|.
    """

    x: Any
    converged: bool
    residual: float
    claimed: float
    iterations: int
    reliable_updates: int
    history: tuple[float, ...]
    stages: tuple[Stage, ...]
    columns: tuple[KrylovResult, ...] = ()
    optimality: float | None = None

    @property
    def path(self) -> tuple[str, ...]:
        """Return the precisions tried, in order."""
        return tuple(dict.fromkeys(stage.precision for stage in self.stages))
