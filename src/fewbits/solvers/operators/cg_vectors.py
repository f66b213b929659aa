"""The interface of vectors for conjugate gradients, which an operator may implement with its own kernels."""

from __future__ import annotations

from typing import Protocol

import torch


class CGVectors(Protocol):
    """Residual r, preconditioned residual z, direction p, its image A p and the partial solution x.

    All are rounded when they are stored; each returned number is a float64 sum over the rounded values.
    Without a preconditioner z is r.
    """

    def load(self, r: torch.Tensor) -> tuple[float, float, float]:
        """Load r, (n,) float64, and set x to zero; return r.r, r.z and r.p."""
        ...

    def update_direction(self, gamma: float, beta: float) -> tuple[float, float]:
        """Let p = gamma z + beta p, and compute A p; return p.Ap and p.p."""
        ...

    def update_residual(self, alpha: float) -> tuple[float, float, float]:
        """Let x += alpha p and r -= alpha A p; return r.r, r.z and the old r.z."""
        ...

    def partial_solution(self) -> torch.Tensor:
        """Return x, (n,) float64; the next call overwrites it."""
        ...
