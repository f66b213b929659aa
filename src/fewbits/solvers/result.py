"""What solving a system found out, beside the solution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Stage:
    """One attempt at a system, successful or not."""

    precision: str
    code: int  # iterations where it converged; -2 overflow, -3 a zero pivot, -50 no convergence
    factor_seconds: float
    refine_seconds: float


@dataclass(frozen=True)
class Result:
    """A solution with its evidence.

    Attributes:
        x: shape and family of the right-hand side.
        backward_error: max over right-hand sides of max |b - A x| / (max |A| row sum * max |x| + max |b|),
            with the residual in float64.
        iterations: of refinement in the stage that converged.
        condition: an estimate of the condition number in the infinity norm, from the factors; nan where
        unknown.
        stages: every attempt, in order; the last one gave x.
    """

    x: Any
    backward_error: float
    iterations: int
    condition: float
    stages: tuple[Stage, ...]

    @property
    def fell_back(self) -> bool:
        """Whether the solution is LAPACK's in double precision after all."""
        return len(self.stages) > 1 and self.stages[-1].precision == "fp64"
