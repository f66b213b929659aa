"""Linear systems solved in a precision, and matrices stored in a format."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

from fewbits.records.error import Error


@dataclass(frozen=True)
class Stage:
    """One attempt at a system, successful or not.

    Attributes:
        precision: its name.
        method: the factorization, LU, Cholesky, QR or SVD, or the Krylov solver.
        code: steps of refinement or iterations if it converged, else negative as in cuSOLVER: -1 not worth
            trying, -2 overflow in the narrow format, -3 a pivot that is zero or not positive, -5 overflow
            during refinement, -50 no convergence.
        inner: iterations of GMRES in those steps.
        factor_seconds: for the factorization and the test before it; 0 if an earlier factorization was
            reused.
        refine_seconds: for everything after it.
        reason: why it failed; empty if it gave the solution.
        history: the componentwise backward error max |r_i| / (|A| |x| + |b|)_i of the worst right-hand side:
            of the first solution, then after every step of refinement or iteration of GMRES; those within
            GMRES are its own estimates in the 2-norm. For a Krylov solver, the recurrence's residuals divided
            by |b|.
    """

    precision: str
    method: str
    code: int
    inner: int
    factor_seconds: float
    refine_seconds: float
    reason: str
    history: tuple[float, ...]


@dataclass(frozen=True)
class SolveScore:
    """One linear system solved in one precision."""

    matrix: str
    unknowns: int
    precision: str  # asked for
    stages: tuple[Stage, ...]  # the last one gave the solution
    iterations: int  # steps of refinement
    backward_error: float  # normwise, infinity norms; of a Krylov solver the true residual over |b|
    condition: float  # estimate, infinity norm, equilibrated; inf if it is too large to estimate
    seconds: float
    of_double: float | None  # time in double precision over this one; None where that was not measured
    goal: float  # the residual asked for
    measure: str  # the formula of the residuals in the history
    componentwise_error: float = nan  # backward error entry by entry; nan where it was not measured
    forward_error: float = nan  # estimate of the largest error over the largest unknown; likewise

    @property
    def path(self) -> tuple[str, ...]:
        """Each attempt as precision and code."""
        return tuple(f"{stage.precision}: {stage.code}" for stage in self.stages)


@dataclass(frozen=True)
class MatrixScore:
    """A sparse matrix with its entries stored in one format."""

    matrix: str
    format: str
    bits_per_value: float
    values_bytes: int
    error: Error
    frobenius_error: float  # ||A - Q(A)||_F / ||A||_F
    condition: float  # 1-norm condition estimate of Q(A); inf when Q(A) is singular
    condition_fp64: float  # the same of A
    note: str
