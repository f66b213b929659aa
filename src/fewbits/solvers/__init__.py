"""Linear systems to full double accuracy, whose expensive part runs in a narrow format."""

from __future__ import annotations

from fewbits.solvers.dense import Factorization, factorize, solve
from fewbits.solvers.krylov import KrylovResult, cg
from fewbits.solvers.precision import PRECISIONS, Precision, precision
from fewbits.solvers.result import Result, Stage

__all__ = [
    "PRECISIONS",
    "Factorization",
    "KrylovResult",
    "Precision",
    "Result",
    "Stage",
    "cg",
    "factorize",
    "precision",
    "solve",
]
