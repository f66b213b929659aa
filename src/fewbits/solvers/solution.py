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

    Residuals are computed in about twice the precision of float64. Norms are infinity norms, and each number
    is that of the worst right-hand side.

    Attributes:
        x: shape and family of the right-hand side.
        backward_error: normwise, max |b - A x| / (|A| max |x| + max |b|) (Rigal and Gaches, 1967).
        componentwise_error: max over i of |b - A x|_i / (|A| |x| + |b|)_i (Oettli and Prager, 1964); nan for
            least squares.
        forward_error: an estimate of max |x - x'| / max |x'|, where x' is the exact solution, from the
            residual and the factors, as LAPACK's GERFS has it; infinity where x is no solution, nan where
            nothing is known.
        iterations: of refinement in the stage that converged.
        condition: an estimate of the condition number in the infinity norm, of A with rows and columns
            equilibrated, from the factors; infinity where it is so large that estimates mean nothing; nan
            where unknown.
        stages: every attempt, in order; the last one gave x.
    """

    x: Any
    backward_error: float
    componentwise_error: float
    forward_error: float
    iterations: int
    condition: float
    stages: tuple[Stage, ...]

    @property
    def converged(self) -> bool:
        """Whether the last stage ended with a solution as good as double precision has."""
        return not self.stages or self.stages[-1].code >= 0

    @property
    def fell_back(self) -> bool:
        """Whether the solution is LAPACK's in double precision after all."""
        return len(self.stages) > 1 and self.stages[-1].precision == "fp64"

    @property
    def history(self) -> tuple[float, ...]:
        """The residuals of the stage that gave x: ``stages[-1].history``."""
        return self.stages[-1].history if self.stages else ()
