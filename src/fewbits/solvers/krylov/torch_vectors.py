"""The vectors of conjugate gradients in PyTorch, for operators without kernels of their own."""

from __future__ import annotations

import torch

from fewbits.solvers.krylov.space import Space
from fewbits.solvers.operators.vectors import wide


class TorchVectors:
    """The :class:`CGVectors` of any operator and format: rounded values, held in float32 or complex64."""

    def __init__(self, space: Space) -> None:
        self.space = space
        a, dtype = space.operator, torch.complex128 if space.pairs else torch.float64
        self.x = torch.zeros(a.n, dtype=dtype, device=a.device)
        self.r = self.z = self.p = self.image = torch.zeros_like(self.x, dtype=space.dtype)

    def dot(self, u: torch.Tensor, v: torch.Tensor) -> float:
        """Return the real part of u^H v, which is all that a Hermitian A needs."""
        return self.space.operator.dot(u, v).real

    def load(self, r: torch.Tensor) -> tuple[float, float, float]:
        """Load r, (n,) float64, and set x to zero; return r.r, r.z and r.p."""
        self.x = torch.zeros_like(self.x)
        self.r = self.space.rounded_copy(r)
        self.z = self.space.preconditioned(self.r)
        return self.dot(self.r, self.r), self.dot(self.r, self.z), self.dot(self.r, self.p)

    def update_direction(self, gamma: float, beta: float) -> tuple[float, float]:
        """Let p = gamma z + beta p, and compute A p; return p.Ap and p.p."""
        self.p = self.space.rounded(gamma * self.z + beta * self.p)
        self.image = self.space.apply(self.p)
        return self.dot(self.p, self.image), self.dot(self.p, self.p)

    def update_residual(self, alpha: float) -> tuple[float, float, float]:
        """Let x += alpha p and r -= alpha A p; return r.r, r.z and the old r.z."""
        old = self.r
        self.x.add_(wide(self.p), alpha=alpha)
        self.r = self.space.rounded(self.r - alpha * self.image)
        self.z = self.space.preconditioned(self.r)
        return self.dot(self.r, self.r), self.dot(self.r, self.z), self.dot(old, self.z)

    def partial_solution(self) -> torch.Tensor:
        """Return x, (n,) float64; the next call overwrites it."""
        return self.x
