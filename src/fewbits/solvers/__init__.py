"""Linear systems to full double accuracy, whose expensive part runs in a narrow format."""

from __future__ import annotations

from fewbits.records import Stage
from fewbits.solvers.dense import Factorization, factorize, solve
from fewbits.solvers.krylov import Deflation, KrylovResult, cg, low_modes
from fewbits.solvers.least_squares import lstsq
from fewbits.solvers.operators import Operator
from fewbits.solvers.precision import (
    KRYLOV_PRECISIONS,
    PRECISIONS,
    KrylovPrecision,
    Precision,
    krylov_precision,
    precision,
)
from fewbits.solvers.result import Result

__all__ = [
    "KRYLOV_PRECISIONS",
    "PRECISIONS",
    "Deflation",
    "Factorization",
    "KrylovPrecision",
    "KrylovResult",
    "Operator",
    "Precision",
    "Result",
    "Stage",
    "cg",
    "factorize",
    "krylov_precision",
    "low_modes",
    "lstsq",
    "precision",
    "solve",
]
