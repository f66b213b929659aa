"""Linear operators: the interface that Krylov solvers use, and matrices with kernels of their own."""

from __future__ import annotations

from fewbits.solvers.operators.adapters import LinearMap
from fewbits.solvers.operators.compressed_rows import CompressedRows
from fewbits.solvers.operators.operator import Operator
from fewbits.solvers.operators.partitioned import Partitioned
from fewbits.solvers.operators.stencil import Stencil

__all__ = ["CompressedRows", "LinearMap", "Operator", "Partitioned", "Stencil"]
