"""Krylov solvers whose vectors and matrix are narrow, and whose true residual decides."""

from __future__ import annotations

from fewbits.solvers.krylov.cg import cg
from fewbits.solvers.krylov.deflation import Deflation, low_modes
from fewbits.solvers.krylov.result import KrylovResult

__all__ = ["Deflation", "KrylovResult", "cg", "low_modes"]
