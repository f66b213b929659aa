"""What solving a system found out, beside the solution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fewbits.records import Stage

# What a code below zero says, numbered as in cuSOLVER's iterative refinement and LAPACK's DSGESV.
REASONS = {
    -1: "not worth trying",
    -2: "overflow in the narrow format",
    -3: "the factorization met a pivot that is zero, or not positive where it must be",
    -5: "overflow during refinement",
    -50: "refinement did not converge",
}


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

    @property
    def history(self) -> tuple[float, ...]:
        """The residuals of the stage that gave x: ``stages[-1].history``."""
        return self.stages[-1].history if self.stages else ()
