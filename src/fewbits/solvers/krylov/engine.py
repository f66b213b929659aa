"""The vectors of conjugate gradients: what is held, in which format, and the two passes over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from fewbits.formats import Format
from fewbits.solvers.operators import Operator
from fewbits.solvers.precision import KrylovPrecision
from fewbits.tensor import fake_quantize
from fewbits.tensor import format as read

Preconditioner = Callable[[torch.Tensor], torch.Tensor]


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
        """Return x, (n,) float64."""
        ...


class TorchEngine:
    """Vectors in PyTorch, for any operator and any format; they are rounded, and lie in float32."""

    def __init__(
        self, operator: Operator, precision: KrylovPrecision, preconditioner: Preconditioner | None = None
    ) -> None:
        self.operator, self.preconditioner = operator, preconditioner
        self.dtype = torch.float64 if precision.double else torch.float32
        self.apply = operator.exact if precision.double else operator.narrowed(narrow(precision.matrix))
        self.format = narrow(precision.vectors)
        self.x = torch.zeros(operator.n, dtype=torch.float64)
        self.r = self.z = self.p = self.image = torch.zeros(operator.n, dtype=self.dtype)

    def stored(self, v: torch.Tensor) -> torch.Tensor:
        """Return ``v`` as it is kept between two operations."""
        v = v.to(self.dtype)
        return v if self.format is None else fake_quantize(v, self.format)

    def load(self, r: torch.Tensor) -> tuple[float, float, float]:
        """See :class:`Engine`."""
        self.x = torch.zeros_like(self.x)
        self.r = self.stored(r)
        self.z = self._preconditioned()
        dot = self.operator.dot
        return dot(self.r, self.r), dot(self.r, self.z), dot(self.r, self.p)

    def turn(self, gamma: float, beta: float) -> tuple[float, float]:
        """See :class:`Engine`."""
        self.p = self.stored(gamma * self.z + beta * self.p)
        self.image = self.apply(self.p)
        return self.operator.dot(self.p, self.image), self.operator.dot(self.p, self.p)

    def advance(self, alpha: float) -> tuple[float, float, float]:
        """See :class:`Engine`."""
        old = self.r
        self.x.add_(self.p.double(), alpha=alpha)
        self.r = self.stored(self.r - alpha * self.image)
        self.z = self._preconditioned()
        dot = self.operator.dot
        return dot(self.r, self.r), dot(self.r, self.z), dot(old, self.z)

    def partial(self) -> torch.Tensor:
        """See :class:`Engine`."""
        return self.x

    def _preconditioned(self) -> torch.Tensor:
        return self.r if self.preconditioner is None else self.stored(self.preconditioner(self.r))


def narrow(fmt: str) -> Format | None:
    """Return the format that rounds a float32, or None for those that round nothing."""
    return None if fmt in ("fp64", "fp32") else read(fmt)
