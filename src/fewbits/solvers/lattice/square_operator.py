"""The interface of an operator that is the square of a Hermitian one."""

from __future__ import annotations

from fewbits.solvers.operators.operator import Operator
from fewbits.typing import NumpyArray


class Square(Operator):
    """An operator H^2 on vectors of float64 or complex128 that multiplies by its Hermitian H too."""

    def hermitian(self, v: NumpyArray) -> NumpyArray:
        """Return H v, (n,)."""
        raise NotImplementedError
