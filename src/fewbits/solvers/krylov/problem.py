"""What every Krylov solver does before and after its loop: check, and compute the true residual."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers.krylov.result import KrylovResult
from fewbits.solvers.operators import Operator, operator


class Problem:
    """A x = b, checked.

    Attributes:
        a: the operator.
        b: (n,) float64.
        size: |b|.
        target: the residual to reach, tol |b|.
        most: iterations allowed.
    """

    def __init__(self, a: Any, b: Any, tol: float, most: int | None) -> None:
        self.given, self.tol = b, tol
        self.b = _right_hand_side(b)
        if not 0 < tol < 1:
            raise ArgumentError(f"tol={tol}; expected a relative residual between 0 and 1")
        self.a: Operator = operator(a, len(self.b))
        self.size = self.a.norm(self.b)
        self.target = tol * self.size
        self.most = 10 * len(self.b) if most is None else most

    def residual(self, x: torch.Tensor) -> torch.Tensor:
        """Return b - A x in float64."""
        return self.b - self.a.exact(x)

    def result(
        self, x: torch.Tensor, claimed: float, history: list[float], updates: int, path: tuple[str, ...]
    ) -> KrylovResult:
        """Return x with the true residual; ``claimed`` and ``history`` are norms."""
        size = self.size or 1.0
        true = self.a.norm(self.residual(x)) / size
        found = x.numpy() if isinstance(self.given, np.ndarray) else x
        # The sum of a residual this small may differ in its last digits from the one that stopped the loop.
        return KrylovResult(
            found,
            true <= self.tol * (1 + 1e-6),
            true,
            claimed / size,
            len(history),
            updates,
            tuple(h / size for h in history),
            path,
        )


def _right_hand_side(b: Any) -> torch.Tensor:
    right = torch.from_numpy(np.ascontiguousarray(b)) if isinstance(b, np.ndarray) else b
    if not isinstance(right, torch.Tensor) or right.ndim != 1 or not right.is_floating_point():
        raise ArgumentError("b is no vector of real floats; expected shape (n,)")
    wide = right.detach().to(torch.float64)
    if not bool(torch.isfinite(wide).all()):
        raise DataError("b holds NaN or infinity; remove them first")
    return wide


def check_symmetric(operator: Operator) -> None:
    """Refuse an A with u^T A v != v^T A u for a random u and v; two products tell it of a function too."""
    if operator.symmetric:
        return
    generator = torch.Generator().manual_seed(0)
    u, v = (torch.randn(operator.n, generator=generator, dtype=torch.float64) for _ in range(2))
    of_u, of_v = operator.exact(u), operator.exact(v)
    if abs(operator.dot(u, of_v) - operator.dot(v, of_u)) > 1e-8 * operator.norm(u) * operator.norm(of_v):
        raise ArgumentError(
            "A is not symmetric, and conjugate gradients need that; take bicgstab, gmres or gcr, or"
            " fewbits.solve"
        )
