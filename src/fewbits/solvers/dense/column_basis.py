"""Krylov bases for several right-hand sides of a dense system, held together in double precision."""

from __future__ import annotations

import torch

from fewbits.solvers.dense.factors import Substitute
from fewbits.solvers.dense.system import System


class ColumnBasis:
    """The :class:`fewbits.solvers.flexible_gmres.Basis` of k right-hand sides; Gram-Schmidt as products.

    Args:
        system: of n unknowns.
        r: (n, k) of its dtype, the residuals.
        size: (k,) float64, their norms.
        precondition: function from (n, k) to (n, k) that approximates A^-1.
        maxiter: largest number of directions.
    """

    def __init__(
        self, system: System, r: torch.Tensor, size: torch.Tensor, precondition: Substitute, maxiter: int
    ) -> None:
        n, k = r.shape
        self._system, self._precondition, self._count = system, precondition, 0
        # Each vector is contiguous in memory, as matrix products need it.
        self._vectors = r.new_zeros(k, maxiter + 1, n)
        self._directions = r.new_zeros(k, maxiter, n)
        self.append(r.mT[:, :, None], size)

    def expand(self) -> torch.Tensor:
        """Keep the newest preconditioned direction, and return A times it, (k, n, 1)."""
        direction = self._precondition(self._vectors[:, self._count - 1].mT)
        self._directions[:, self._count - 1] = direction.mT
        return self._system.matvec(direction).mT[:, :, None]

    def orthogonalize(self, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return w, (k, n, 1), without its parts along the vectors, and those parts, (k, j)."""
        vectors = self._vectors[:, : self._count]
        parts = vectors.conj() @ w
        return w - vectors.mT @ parts, parts[:, :, 0]

    def norm(self, w: torch.Tensor) -> torch.Tensor:
        """Return the norms of w, (k,)."""
        norms: torch.Tensor = torch.linalg.vector_norm(w[:, :, 0], dim=1)
        return norms

    def append(self, w: torch.Tensor, length: torch.Tensor) -> None:
        """Add w / length; zeros where the length is zero."""
        length = length[:, None]
        self._vectors[:, self._count] = torch.where(length > 0, w[:, :, 0] / length, 0.0)
        self._count += 1

    def combine(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the sum of the directions with these weights, (n, k)."""
        return (self._directions[:, : weights.shape[1]].mT @ weights[:, :, None])[:, :, 0].mT
