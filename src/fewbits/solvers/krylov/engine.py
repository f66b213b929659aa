"""The vectors of conjugate gradients: what is held, in which format, and the two passes over it."""

from __future__ import annotations

from typing import Protocol

import torch

from fewbits.solvers.krylov.space import Space
from fewbits.solvers.vectors import wide


class Engine(Protocol):
    """Residual r, preconditioned residual z, direction p, its image A p and the partial solution x.

    All are rounded as they are stored; every number returned is a sum in float64 of what was stored.
    Without a preconditioner z is r.
    """

    def load(self, r: torch.Tensor) -> tuple[float, float, float]:
        """Take r, (n,) float64, and zero for x; return r.r, r.z and r.p."""
        ...

    def turn(self, gamma: float, beta: float) -> tuple[float, float]:
        """Let p = gamma z + beta p, and compute A p; return p.Ap and p.p."""
        ...

    def advance(self, alpha: float) -> tuple[float, float, float]:
        """Let x += alpha p and r -= alpha A p; return r.r, r.z and the old r.z."""
        ...

    def partial(self) -> torch.Tensor:
        """Return x, (n,) float64; it holds until the next call."""
        ...


class TorchEngine:
    """Vectors in PyTorch, for any operator and format; they are rounded, and lie in float32 or complex64."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.x = torch.zeros(space.operator.n, dtype=torch.complex128 if space.pairs else torch.float64)
        self.r = self.z = self.p = self.image = torch.zeros_like(self.x, dtype=space.dtype)

    def dot(self, u: torch.Tensor, v: torch.Tensor) -> float:
        """Return the real part of u^H v; of a Hermitian A that is all there is."""
        return self.space.operator.dot(u, v).real

    def load(self, r: torch.Tensor) -> tuple[float, float, float]:
        """See :class:`Engine`."""
        self.x = torch.zeros_like(self.x)
        self.r = self.space.taken(r)
        self.z = self.space.preconditioned(self.r)
        return self.dot(self.r, self.r), self.dot(self.r, self.z), self.dot(self.r, self.p)

    def turn(self, gamma: float, beta: float) -> tuple[float, float]:
        """See :class:`Engine`."""
        self.p = self.space.stored(gamma * self.z + beta * self.p)
        self.image = self.space.apply(self.p)
        return self.dot(self.p, self.image), self.dot(self.p, self.p)

    def advance(self, alpha: float) -> tuple[float, float, float]:
        """See :class:`Engine`."""
        old = self.r
        self.x.add_(wide(self.p), alpha=alpha)
        self.r = self.space.stored(self.r - alpha * self.image)
        self.z = self.space.preconditioned(self.r)
        return self.dot(self.r, self.r), self.dot(self.r, self.z), self.dot(old, self.z)

    def partial(self) -> torch.Tensor:
        """See :class:`Engine`."""
        return self.x
