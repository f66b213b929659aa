"""The interface of an operator that is the square of a Hermitian one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray

from fewbits.solvers.operators.operator import Operator


class Square(Operator):
    """An operator H^2 on vectors of float64 or complex128 that multiplies by its Hermitian H too.

    Attributes:
        turned: of an operator on real numbers that stand for complex ones, v to i v, (..., n); both are
            eigenvectors of an eigenvalue, of which conjugate gradients see one. Else None.
    """

    turned: Callable[[torch.Tensor], torch.Tensor] | None = None

    def hermitian(self, v: NDArray[Any]) -> NDArray[Any]:
        """Return H v, (n,)."""
        raise NotImplementedError
