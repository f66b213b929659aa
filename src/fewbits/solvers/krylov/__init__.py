"""Krylov solvers with narrow vectors and matrices; the true residual, in float64, decides convergence."""

from __future__ import annotations

from fewbits.solvers.krylov.bicgstab import bicgstab
from fewbits.solvers.krylov.cg import cg
from fewbits.solvers.krylov.deflation import Deflation, low_modes
from fewbits.solvers.krylov.gmres import gcr, gmres
from fewbits.solvers.krylov.lsqr import lsqr
from fewbits.solvers.krylov.minres import minres
from fewbits.solvers.krylov.multishift import multishift_cg

__all__ = [
    "Deflation",
    "bicgstab",
    "cg",
    "gcr",
    "gmres",
    "low_modes",
    "lsqr",
    "minres",
    "multishift_cg",
]
