"""Vectors of conjugate gradients on a stencil: packed in memory, two passes for each iteration."""

from __future__ import annotations

import math

import numpy as np
import torch

from fewbits.kernels.arrays.stencil import stencil_passes
from fewbits.kernels.bits.memory import empty_aligned
from fewbits.kernels.bits.stencil import SITE, Grid, ScaledArray, stride_of, zeros


class StencilVectors:
    """The :class:`CGVectors` of a stencil.

    x += alpha p is delayed until a pass over p: x is updated only in every second iteration, with the last
    two directions at once. The older one is still in the buffer for the next direction.

    Args:
        grid: the faces as the kernels read them.
        shape: (nz, ny, nx).
        vectors: storage of the vectors: f64, f32, f16 or i16.
        gain: a bound on |A p| / |p|, used until one has been measured.
    """

    def __init__(self, grid: Grid, shape: tuple[int, int, int], vectors: str, gain: float) -> None:
        self.shape, self.vectors, self.gain = shape, vectors, gain
        self.passes = stencil_passes(grid)
        padded = (*shape[:2], stride_of(shape[2]))
        self.r, self.p, self.following, self.q = (zeros(padded, vectors) for _ in range(4))
        self.x = zeros(padded, "f64" if vectors == "f64" else "f32").values
        self.total = torch.from_numpy(empty_aligned(shape, np.float64))
        self.alpha = self.earlier = 0.0  # delayed multiples of p and of `following` to be added to x
        self.rr = self.pp = 0.0

    def load(self, r: torch.Tensor) -> tuple[float, float, float]:
        """Load r and set x to zero; return r.r, r.z and r.p, where z is r."""
        self.x.fill(0)
        self.alpha = self.earlier = 0.0
        self.r.scale = self._scale(float(torch.linalg.vector_norm(r)))
        values = r.reshape(self.shape).contiguous().numpy()
        self.rr, rp = self.passes.pack(values, self.r, self.p)
        return self.rr, self.rr, rp

    def update_direction(self, gamma: float, beta: float) -> tuple[float, float]:
        """Let p = gamma r + beta p, and compute A p; return p.Ap and p.p."""
        length = math.sqrt(gamma * gamma * self.rr + beta * beta * self.pp)
        before = self.following.scale
        self.following.scale, self.q.scale = self._scale(length), self._scale(self.gain * length)
        parts = (self.r, self.p, self.following, self.q)
        # The codes in `following` are read with a new scale; both scales are powers of two.
        earlier = self.earlier * before / self.following.scale
        paid = (self.alpha, earlier) if earlier != 0 else (0.0, 0.0)
        pq, self.pp, qq = self.passes.update_direction(*parts, self.x, *paid, gamma, beta)
        self.p, self.following = self.following, self.p
        self.alpha, self.earlier = 0.0, self.alpha - paid[0]
        self.gain = math.sqrt(qq / self.pp) if self.pp > 0 else self.gain
        return pq, self.pp

    def update_residual(self, alpha: float) -> tuple[float, float, float]:
        """Let x += alpha p and r -= alpha A p; return r.r, r.z and the old r.z, where z is r."""
        self.alpha = alpha
        self.rr, mixed = self.passes.update_residual(self.r, self.q, self._scale(math.sqrt(self.rr)), alpha)
        return self.rr, self.rr, mixed

    def partial_solution(self) -> torch.Tensor:
        """Return x, (n,) float64; the next call overwrites it."""
        # Plane by plane into one reused array: allocating this much memory costs more than the arithmetic.
        for z, plane in enumerate(self.total):
            x = torch.from_numpy(self.x[z])
            for factor, p in ((self.alpha, self.p), (self.earlier, self.following)):
                if factor != 0:
                    x = torch.add(x, self._plane(p, z), alpha=factor)
            plane.copy_(x[:, : self.shape[2]])
        return self.total.view(-1)

    def _plane(self, v: ScaledArray, z: int) -> torch.Tensor:
        """Return plane z of ``v``, unpacked to float32 or float64."""
        p = torch.from_numpy(v.values[z])
        if self.vectors in ("f64", "f32"):
            return p
        if v.norms is None:
            return p.float().mul_(v.scale)
        norms = torch.from_numpy(v.norms[z])
        return p.float().view(*norms.shape, SITE).mul_(norms[..., None]).view(p.shape)

    def _scale(self, length: float) -> float:
        """Return the scale for a vector of that norm, so that no code exceeds 2^15."""
        return power_below(length / math.sqrt(math.prod(self.shape))) if self.vectors == "f16" else 1.0


def power_below(size: float) -> float:
    """Return the power of two at or below ``size``, within float32's range."""
    return 2.0 ** max(-100, min(100, math.floor(math.log2(size)))) if size > 0 else 1.0
