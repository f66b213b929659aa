"""The interface of an operator that is the square of a Hermitian one, on the sites of one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray

from fewbits.kernels.bits.lattice import SITES
from fewbits.solvers.lattice.domain import Domain
from fewbits.solvers.operators.operator import Operator
from fewbits.solvers.operators.vectors import largest, wide


class Square(Operator):
    """An operator H^2 on the real numbers of each site, in the order of the kernels.

    Sums go over the sites of all processes, and do not depend on how these divide the sites.

    Attributes:
        domain: the sites of this process.
        reals: numbers of a site.
        turned: of an operator on real numbers that stand for complex ones, v to i v, (..., n); both are
            eigenvectors of an eigenvalue, of which conjugate gradients see one. Else None.
    """

    domain: Domain
    reals: int
    turned: Callable[[torch.Tensor], torch.Tensor] | None = None

    def hermitian(self, v: NDArray[Any]) -> NDArray[Any]:
        """Return H v, (n,)."""
        raise NotImplementedError

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        """Return the sum over the processes."""
        return self.domain.summed(sums)

    def peak(self, v: torch.Tensor) -> float:
        """Return the largest magnitude in v over all processes."""
        return self.domain.peak(largest(v))

    def dot(self, u: torch.Tensor, v: torch.Tensor) -> float:
        """Return u^H v over all processes, summed in float64."""
        if u.is_complex():
            return super().dot(u, v)
        products = (wide(u) * wide(v)).numpy().reshape(-1, self.reals, SITES)
        return self.domain.total(products.sum(1).reshape(-1))

    def norm(self, v: torch.Tensor) -> float:
        """Return the Euclidean norm over all processes."""
        return float(super().norm(v)) if v.is_complex() else self.dot(v, v) ** 0.5
