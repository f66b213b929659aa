"""The vectors of conjugate gradients on a lattice, packed: integers with a norm for each site."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from fewbits.kernels.arrays import lattice
from fewbits.kernels.bits.lattice import REALS, SITES, zeros
from fewbits.solvers.lattice.fixed_point import decode, encode
from fewbits.solvers.lattice.hops import Hops


class LatticeVectors:
    """The :class:`CGVectors` of H^2.

    An iteration takes three passes over memory: x and p; t = H p, whose squared norm is the curvature p^T H^2
    p; and r -= alpha H t, so that H^2 p is never stored.

    Args:
        hops: H with packed links; the vectors have the same dtype.
    """

    def __init__(self, hops: Hops) -> None:
        self.hops, self.extent = hops, hops.extent
        groups, dtype = len(hops.links), hops.links.dtype
        self.r, self.p, self.t = (zeros(groups, dtype) for _ in range(3))
        self.x = np.zeros((groups, REALS, SITES), np.float64 if dtype == np.float64 else np.float32)
        self.alpha = 0.0  # alpha p is added to x in the next pass
        self.projector: Callable[[torch.Tensor], torch.Tensor] | None = None  # changes each direction

    def load(self, r: torch.Tensor) -> tuple[float, float, float]:
        """Load r and set x to zero; return r.r, r.r and r.p."""
        self.x[:] = 0
        self.alpha = 0.0
        wide = r.numpy().reshape(self.x.shape)
        rr, rp = lattice.store_residual(self.extent, wide, self.r, self.p)
        return rr, rr, rp

    def update_direction(self, gamma: float, beta: float) -> tuple[float, float]:
        """Let p = gamma r + beta p, and compute H p; return |H p|^2 and p.p."""
        length2 = lattice.update_direction(
            self.extent,
            self.r,
            self.p,
            self.x,
            alpha=self.alpha,
            gamma=gamma,
            beta=beta,
            parity=self.hops.parity,
        )
        self.alpha = 0.0
        if self.projector is not None:
            length2 = self._project(self.projector)
        curvature, _ = self.hops.apply(self.p, self.t)
        return curvature, length2

    def update_residual(self, alpha: float) -> tuple[float, float, float]:
        """Let x += alpha p and r -= alpha H (H p); return r.r twice, and the old r times the new one."""
        self.alpha = alpha
        rr, mixed = self.hops.apply(self.t, self.r, alpha)
        return rr, rr, mixed

    def partial_solution(self) -> torch.Tensor:
        """Return x, (n,) float64."""
        if self.alpha:
            lattice.update_solution(self.extent, self.p, self.x, alpha=self.alpha)
            self.alpha = 0.0
        return torch.from_numpy(self.x.reshape(-1)).double()

    def _project(self, projector: Callable[[torch.Tensor], torch.Tensor]) -> float:
        """Let p be what the projector makes of it; return p.p."""
        p = decode(self.p.values, self.p.norms, 1)
        changed = projector(torch.from_numpy(p.reshape(-1))).numpy().reshape(p.shape)
        values, norms = encode(changed, p.dtype if self.p.norms is None else self.p.values.dtype, 1)
        self.p.values[:] = values
        if self.p.norms is not None:
            self.p.norms[:] = norms
        return float(np.vdot(changed, changed))

    def direction(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return p and H p, (n,) float32."""
        p, t = (decode(field.values, field.norms, 1).astype(np.float32) for field in (self.p, self.t))
        return torch.from_numpy(p.reshape(-1)), torch.from_numpy(t.reshape(-1))
