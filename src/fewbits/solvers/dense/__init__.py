"""Dense systems and least squares: factorized in a narrow format, refined to double accuracy."""

from __future__ import annotations

from fewbits.solvers.dense.factorization import Factorization, factorize, solve
from fewbits.solvers.dense.least_squares import lstsq

__all__ = ["Factorization", "factorize", "lstsq", "solve"]
