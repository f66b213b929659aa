"""The vectors of conjugate gradients on a lattice, packed: integers with a norm for each site."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fewbits.kernels.arrays import lattice
from fewbits.kernels.bits.lattice import SITES, Field
from fewbits.solvers.lattice.domain import Domain
from fewbits.solvers.lattice.fixed_point import decode, encode


class Projecting(Protocol):
    """What changes directions and residuals, as :class:`fewbits.solvers.lattice.ritz.Projector` does."""

    def __call__(self, p: torch.Tensor) -> torch.Tensor:
        """Return the direction changed."""
        ...

    def correction(self, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a step and its image under the operator."""
        ...


class HopsOfSquare(Protocol):
    """H^2 on packed fields, in two steps that each read and write a field once."""

    domain: Domain
    reals: int

    @property
    def parity(self) -> int | None:
        """The parity of the sites that are unknowns; None for all sites."""
        ...

    def zeros(self) -> Field:
        """Return a field of zeros."""
        ...

    def curvature(self, p: Field, t: Field, length2: float) -> float:
        """Write t, what H^2 p is made of; return p^T H^2 p, given p.p."""
        ...

    def step(self, p: Field, t: Field, r: Field, alpha: float) -> tuple[float, float]:
        """Let r -= alpha H^2 p; return |r|^2, and the old r times the new one."""
        ...

    def image(self, p: NDArray[np.float32], t: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return values whose products with those of another p are the products of H p."""
        ...


class LatticeVectors:
    """The :class:`CGVectors` of H^2.

    An iteration takes three passes over memory: x and p; t = H p, whose squared norm is the curvature p^T H^2
    p; and r -= alpha H t, so that H^2 p is never stored.

    Args:
        hops: H with packed links; the vectors have the same dtype.
    """

    def __init__(self, hops: HopsOfSquare) -> None:
        self.hops, self.layout, self.groups = hops, hops.domain.layout, hops.domain.groups
        self.r, self.p, self.t = (hops.zeros() for _ in range(3))
        double = self.r.values.dtype == np.float64
        self.x = np.zeros((self.groups, hops.reals, SITES), np.float64 if double else np.float32)
        self.alpha = 0.0  # alpha p is added to x in the next pass
        self.projector: Projecting | None = None

    def load(self, r: torch.Tensor) -> tuple[float, float, float]:
        """Load r and set x to zero; return r.r, r.r and r.p."""
        self.x[:] = 0
        self.alpha = 0.0
        wide = r.numpy().reshape(self.x.shape)
        rr, rp = lattice.store_residual(self.layout, wide, self.r, self.p)
        return rr, rr, rp

    def update_direction(self, gamma: float, beta: float) -> tuple[float, float]:
        """Let p = gamma r + beta p, and compute H p; return |H p|^2 and p.p."""
        length2 = lattice.update_direction(
            self.layout,
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
        return self.hops.curvature(self.p, self.t, length2), length2

    def update_residual(self, alpha: float) -> tuple[float, float, float]:
        """Let x += alpha p and r -= alpha H (H p); return r.r twice, and the old r times the new one."""
        self.alpha = alpha
        old = None if self.projector is None else self._wide(self.r)
        rr, mixed = self.hops.step(self.p, self.t, self.r, alpha)
        if self.projector is not None and old is not None and np.isfinite(rr):
            # Rounding leaves a residual in the span of the modes, which no projected direction reduces.
            r = self._wide(self.r)
            step, image = self.projector.correction(torch.from_numpy(r))
            self.x += step.numpy().reshape(self.x.shape)
            r = self._store(r - image.numpy(), self.r)
            rr, mixed = self._dot(r, r), self._dot(old, r)
        return rr, rr, mixed

    def partial_solution(self) -> torch.Tensor:
        """Return x, (n,) float64."""
        if self.alpha:
            lattice.update_solution(self.layout, self.p, self.x, alpha=self.alpha)
            self.alpha = 0.0
        return torch.from_numpy(self.x.reshape(-1)).double()

    def _project(self, projector: Projecting) -> float:
        """Let p be what the projector makes of it; return p.p."""
        p = self._store(projector(torch.from_numpy(self._wide(self.p))).numpy(), self.p)
        return self._dot(p, p)

    def _dot(self, u: NDArray[np.float64], v: NDArray[np.float64]) -> float:
        return self.hops.domain.total((u * v).reshape(self.x.shape).sum(1).reshape(-1))

    def _wide(self, field: Field) -> NDArray[np.float64]:
        norms = None if field.norms is None else field.norms[: self.groups]
        return decode(field.values[: self.groups], norms, 1).astype(np.float64).reshape(-1)

    def _store(self, v: NDArray[np.float64], field: Field) -> NDArray[np.float64]:
        """Store v, and return what is stored."""
        values, norms = encode(v.reshape(self.x.shape), field.values.dtype, 1)
        field.values[: self.groups] = values
        if field.norms is not None:
            field.norms[: self.groups] = norms
        return self._wide(field)

    def direction(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return p and H p, (n,) float32; H p but for an isometry."""
        p, t = (self._wide(field).astype(np.float32) for field in (self.p, self.t))
        return torch.from_numpy(p), torch.from_numpy(self.hops.image(p, t))
