"""The vectors of conjugate gradients as an operator may keep them itself: packed, in kernels of its own."""

from __future__ import annotations

from typing import Protocol

import torch


class CGVectors(Protocol):
    """Residual r, preconditioned residual z, direction p, its image A p and the partial solution x.

    All are rounded as they are stored; every number returned is a sum in float64 of what was stored.
    Without a preconditioner z is r.
    """

    def load(self, r: torch.Tensor) -> tuple[float, float, float]:
        """Take r, (n,) float64, and zero for x; return r.r, r.z and r.p."""
        ...

    def update_direction(self, gamma: float, beta: float) -> tuple[float, float]:
        """Let p = gamma z + beta p, and compute A p; return p.Ap and p.p."""
        ...

    def update_residual(self, alpha: float) -> tuple[float, float, float]:
        """Let x += alpha p and r -= alpha A p; return r.r, r.z and the old r.z."""
        ...

    def partial_solution(self) -> torch.Tensor:
        """Return x, (n,) float64; it holds until the next call."""
        ...
