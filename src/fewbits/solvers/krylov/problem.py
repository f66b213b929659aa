"""What every Krylov solver does around its loop: check, attempt in one precision after another, and prove."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers.krylov.result import KrylovResult
from fewbits.solvers.operators import Operator, operator
from fewbits.solvers.precision import KRYLOV_PRECISIONS, KrylovPrecision, krylov_precision

MOST_INCREASES = 10  # true residuals larger than the one before, until an attempt is given up

Watcher = Callable[[int, float], None]


class Problem:
    """A x = b, checked, and how far its solution has come.

    Attributes:
        a: the operator.
        b: (n,) float64.
        size: |b|.
        target: the residual to reach, tol |b|.
        most: iterations allowed.
        y: the solution so far, (n,) float64.
        claimed: the residual as the recurrence has it.
        history: the same after each iteration.
        updates: times the residual was computed anew.
    """

    def __init__(self, a: Any, b: Any, tol: float, most: int | None, watch: Watcher | None) -> None:
        self.given, self.tol, self.watch = b, tol, watch
        self.b = right_hand_side(b)
        if not 0 < tol < 1:
            raise ArgumentError(f"tol={tol}; expected a relative residual between 0 and 1")
        self.a: Operator = operator(a, len(self.b))
        if float(self.a.total((~torch.isfinite(self.b)).sum().double())) > 0:
            raise DataError("b holds NaN or infinity; remove them first")
        self.size = self.a.norm(self.b)
        self.target = tol * self.size
        self.most = 10 * (self.a.unknowns or self.a.n) if most is None else most
        self.y, self._r = torch.zeros_like(self.b), torch.zeros_like(self.b)
        self.claimed, self.history, self.updates, self._increases = self.size, list[float](), 0, 0
        self._last = math.inf

    @property
    def goes_on(self) -> bool:
        """Whether an attempt should iterate once more."""
        stuck = self._increases > MOST_INCREASES
        return self.claimed > self.target and len(self.history) < self.most and not stuck

    def note(self, residual: float) -> None:
        """Take the recurrence's residual after an iteration."""
        self.claimed = residual
        self.history.append(residual)
        if self.watch is not None:
            self.watch(len(self.history), residual / self.size)

    def add(self, x: torch.Tensor) -> torch.Tensor:
        """Add x to the solution, and return b - A y, computed in float64; it holds until the next call."""
        self.y += x
        r = torch.sub(self.b, self.a.exact(self.y), out=self._r)
        self.claimed = self.a.norm(r)
        self._increases += self.claimed > self._last
        self._last = self.claimed
        return r

    def improve(self, x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        """Add x if the residual is smaller with it than ``r``, that without it; return the residual."""
        trial = self.b - self.a.exact(self.y + x)
        size = self.a.norm(trial)
        if not size < self.claimed:
            return r
        self.y, self.claimed, self._last = self.y + x, size, size
        return trial

    def solve(
        self, precision: str | KrylovPrecision, attempt: Callable[[KrylovPrecision], None]
    ) -> KrylovResult:
        """Attempt the precision, with ``auto`` the operator's own and then double; return what came out."""
        auto = precision == "auto"
        chain = [krylov_precision(self.a.preferred if auto else precision)]
        if auto and not chain[0].double:
            chain.append(KRYLOV_PRECISIONS["double"])
        path: list[str] = []
        true = 0.0
        for one in chain if self.size > 0 else ():
            self._increases, self._last = 0, math.inf
            attempt(one)
            path.append(one.name)
            true = self.a.norm(self.b - self.a.exact(self.y))
            if true <= self.target * (1 + 1e-6):
                break
        # The sum of a residual this small may differ in its last digits from the one that stopped the loop.
        size = self.size or 1.0
        return KrylovResult(
            self.y.numpy() if isinstance(self.given, np.ndarray) else self.y,
            true <= self.target * (1 + 1e-6),
            true / size,
            self.claimed / size,
            len(self.history),
            self.updates,
            tuple(h / size for h in self.history),
            tuple(path),
        )


def right_hand_side(b: Any) -> torch.Tensor:
    """Return b, (n,), as a float64 tensor.

    Raises:
        ArgumentError: not a vector of real floats.
    """
    right = torch.from_numpy(np.ascontiguousarray(b)) if isinstance(b, np.ndarray) else b
    if not isinstance(right, torch.Tensor) or right.ndim != 1 or not right.is_floating_point():
        raise ArgumentError("b is no vector of real floats; expected shape (n,)")
    return right.detach().to(torch.float64)


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


def check_delta(delta: float | None) -> None:
    """Refuse a factor that is none."""
    if delta is not None and not 0 < delta < 1:
        raise ArgumentError(f"delta={delta}; expected a factor between 0 and 1, or None")
