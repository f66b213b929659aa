"""Stopping criteria of the Krylov solvers."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace

from fewbits.errors import ArgumentError
from fewbits.solvers.operators.vectors import real_number
from fewbits.tensor.inputs import is_count

# Loops stop a little below the tolerance, because the true residual is summed in another order.
MARGIN = 1 - 2.0**-10

LARGEST = sys.float_info.max


@dataclass(frozen=True)
class Stopping:
    """Stop at |b - A x| <= max(rtol |b|, atol), as scipy.sparse.linalg does, or after ``maxiter`` iterations.

    Attributes:
        rtol: at least 0 and below 1.
        atol: at least 0; rtol and atol are not both 0.
        maxiter: for each precision; None for max(10 n, 100).

    Raises:
        ArgumentError: one of them is out of range.
    """

    rtol: float = 1e-10
    atol: float = 0.0
    maxiter: int | None = None

    def __post_init__(self) -> None:
        rtol, atol = real_number(self.rtol), real_number(self.atol)
        if not 0 <= rtol < 1:
            raise ArgumentError(f"rtol={self.rtol!r}; expected a relative residual between 0 and 1")
        if not 0 <= atol < math.inf:
            raise ArgumentError(f"atol={self.atol!r}; expected a residual of at least 0")
        if rtol == atol == 0:
            raise ArgumentError("rtol=0 and atol=0; expected one above 0: rounding leaves a residual")
        if self.maxiter is not None:
            check_count(self.maxiter, "maxiter")
        # Numbers of NumPy and PyTorch would round residuals to their precision, and compare to their types.
        object.__setattr__(self, "rtol", rtol)
        object.__setattr__(self, "atol", atol)

    def residual(self, size: float, exponent: int = 0) -> float:
        """Return the largest norm of the residual of a converged solution.

        Args:
            size: |b| after b was divided by 2^exponent.
            exponent: that of the power of two; ``atol`` refers to the b before it.
        """
        try:
            with_power = math.ldexp(self.atol, -exponent)
        except OverflowError:
            with_power = LARGEST
        return max(self.rtol * size, with_power)

    def of_copies(self, copies: int) -> Stopping:
        """Return the same criterion for vectors that hold so many copies of the given ones."""
        return replace(self, atol=min(math.sqrt(copies) * self.atol, LARGEST))


def check_count(value: object, name: str) -> None:
    """Raise ArgumentError if this is no whole number above zero."""
    if not is_count(value):
        raise ArgumentError(f"{name}={value!r}; expected at least 1, a whole number")
