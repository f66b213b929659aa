"""The vectors of conjugate gradients on a lattice, packed: integers with a norm for each site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fewbits.kernels.arrays import lattice
from fewbits.kernels.bits.lattice import REALS, SITES, zeros

if TYPE_CHECKING:
    from fewbits.solvers.lattice.normal import Normal


class LatticeEngine:
    """See :class:`fewbits.solvers.krylov.engine.Engine`; the operator is H^2 = M^+ M.

    Three passes over memory make an iteration: x and p; t = H p, whose length is the curvature, as p^T H^2 p
    = |H p|^2; and r -= alpha H t, so that H^2 p is never stored.

    Args:
        a: the operator.
        dtype: of vectors and links.
    """

    def __init__(self, a: Normal, dtype: Any) -> None:
        self.a, self.links = a, a.links(dtype)
        groups = len(self.links)
        self.r, self.p, self.t = (zeros(groups, dtype) for _ in range(3))
        self.x = np.zeros((groups, REALS, SITES), np.float64 if dtype == np.float64 else np.float32)
        self.alpha = 0.0  # x lacks alpha p until the next pass over both

    def load(self, r: torch.Tensor) -> tuple[float, float, float]:
        """Take r and zero for x; return r.r, r.r and r.p."""
        self.x[:] = 0
        self.alpha = 0.0
        wide = r.numpy().reshape(self.x.shape)
        rr, rp = lattice.store_residual(self.a.extent, wide, self.r, self.p)
        return rr, rr, rp

    def turn(self, gamma: float, beta: float) -> tuple[float, float]:
        """Let p = gamma r + beta p, and compute H p; return |H p|^2 and p.p."""
        length2 = lattice.update_direction(
            self.a.extent, self.r, self.p, self.x, alpha=self.alpha, gamma=gamma, beta=beta
        )
        self.alpha = 0.0
        curvature, _ = lattice.hop(self.a.extent, self.links, self.a.diagonal, self.p, self.t)
        return curvature, length2

    def advance(self, alpha: float) -> tuple[float, float, float]:
        """Let x += alpha p and r -= alpha H (H p); return r.r twice, and the old r times the new one."""
        self.alpha = alpha
        rr, mixed = lattice.hop(self.a.extent, self.links, self.a.diagonal, self.t, self.r, alpha=alpha)
        return rr, rr, mixed

    def partial(self) -> torch.Tensor:
        """Return x, (n,) float64."""
        if self.alpha:
            lattice.update_solution(self.a.extent, self.p, self.x, alpha=self.alpha)
            self.alpha = 0.0
        return torch.from_numpy(self.x.reshape(-1)).double()
