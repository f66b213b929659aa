"""Solvers for linear systems: full double accuracy, with the expensive part in a narrow format."""

from __future__ import annotations

from fewbits.records import Stage
from fewbits.solvers.dense import Factorization, factorize, lstsq, solve
from fewbits.solvers.krylov import (
    Deflation,
    bicgstab,
    cg,
    gcr,
    gmres,
    low_modes,
    lsqr,
    minres,
    multishift_cg,
)
from fewbits.solvers.operators import CompressedRows, Operator, Partitioned, Stencil
from fewbits.solvers.precision import (
    KRYLOV_PRECISIONS,
    PRECISIONS,
    KrylovPrecision,
    Precision,
    krylov_precision,
    precision,
)
from fewbits.solvers.solution import Solution

__all__ = [
    "KRYLOV_PRECISIONS",
    "PRECISIONS",
    "CompressedRows",
    "Deflation",
    "Factorization",
    "KrylovPrecision",
    "Operator",
    "Partitioned",
    "Precision",
    "Solution",
    "Stage",
    "Stencil",
    "bicgstab",
    "cg",
    "factorize",
    "gcr",
    "gmres",
    "krylov_precision",
    "low_modes",
    "lsqr",
    "lstsq",
    "minres",
    "multishift_cg",
    "precision",
    "solve",
]
