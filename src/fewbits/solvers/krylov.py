"""Conjugate gradients whose vectors are stored narrow, with reliable updates that keep the residual true.

Clark et al., Solving Lattice QCD systems of equations using mixed precision solvers on GPUs, 2010, section 5;
the library QUDA has the triggers, the Polak-Ribiere step and the re-projection.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.formats import Format
from fewbits.solvers.operators import Operator
from fewbits.tensor import fake_quantize
from fewbits.tensor import format as read

MOST_INCREASES = 10  # reliable updates after which the true residual was larger than before


@dataclass(frozen=True)
class KrylovResult:
    """A solution with its evidence.

    Attributes:
        x: of b's family, float64.
        converged: whether the true residual, in float64, is at most tol |b|.
        residual: |b - A x| / |b|, computed at the end.
        claimed: the same as the recurrence has it.
        iterations: products with A in the loop.
        reliable_updates: times the residual was computed anew in float64.
        history: the recurrence's residual after each iteration, over |b|.
    """

    x: Any
    converged: bool
    residual: float
    claimed: float
    iterations: int
    reliable_updates: int
    history: tuple[float, ...]


def cg(
    a: Any,
    b: Any,
    *,
    vectors: str | Format = "fp32",
    tol: float = 1e-10,
    delta: float | None = 0.1,
    most: int | None = None,
) -> KrylovResult:
    """Solve A x = b for a symmetric positive definite A.

    Search direction and residual are rounded to ``vectors`` whenever they are stored, arithmetic is float32,
    sums are float64, and x is accumulated in float64. Whenever the residual has fallen by ``delta``, it is
    computed anew in float64.

    Args:
        a: see :class:`Operator`.
        b: (n,) numpy.ndarray or torch.Tensor.
        vectors: a format; ``fp64`` computes everything in float64, ``quda_half`` is 16-bit integers with a
            norm for each 24 values.
        tol: |b - A x| <= tol |b|, the true residual.
        delta: None for no reliable updates, which then end with a residual that is not what it claims.
        most: iterations; 10 n by default.

    Raises:
        ArgumentError: shapes that do not fit, an A that is not symmetric, or a tolerance or delta out of
            range.
        DataError: NaN or infinity, or a direction of negative curvature: A is not positive definite.
    """
    right = torch.from_numpy(np.ascontiguousarray(b)) if isinstance(b, np.ndarray) else b
    right = _checked(right, tol, delta)
    operator, fmt = Operator(a, len(right)), None if vectors == "fp64" else read(vectors)
    _check_symmetric(operator)
    size = float(torch.linalg.vector_norm(right))
    if size == 0:
        return KrylovResult(_like(right, b), True, 0.0, 0.0, 0, 0, ())
    found = _Iteration(operator, right, fmt, delta)
    found.run(tol * size, 10 * len(right) if most is None else most)
    true = float(torch.linalg.vector_norm(right - operator.exact(found.total()))) / size
    return KrylovResult(
        _like(found.total(), b),
        true <= tol * (1 + 1e-6),
        true,
        math.sqrt(found.r2) / size,
        len(found.history),
        found.updates,
        tuple(h / size for h in found.history),
    )


class _Iteration:
    """The state of the loop: y + x is the solution, r the residual and p the direction."""

    def __init__(self, operator: Operator, b: torch.Tensor, fmt: Format | None, delta: float | None) -> None:
        self.operator, self.b, self.fmt, self.delta = operator, b, fmt, delta
        self.y, self.x = torch.zeros_like(b), torch.zeros_like(b)
        self.r = self.stored(b)
        self.p = self.r
        self.r2 = _dot(self.r, self.r)
        self.start = self.largest = math.sqrt(self.r2)  # since the last reliable update
        self.history: list[float] = []
        self.updates = self.increases = 0

    def total(self) -> torch.Tensor:
        return self.y + self.x

    def stored(self, v: torch.Tensor) -> torch.Tensor:
        """Return ``v`` as it is kept between two operations."""
        if self.fmt is None:
            return v.double()
        # A norm of its own keeps small residuals representable where the format has none.
        return fake_quantize(v.float(), self.fmt)  # type: ignore[no-any-return]

    def run(self, target: float, most: int) -> None:
        apply = self.operator.exact if self.fmt is None else self.operator.cheap
        while len(self.history) < most:
            image = apply(self.p)
            curvature = _dot(self.p, image)
            if curvature <= 0:
                if self.r2 <= target**2 or math.isnan(curvature):
                    return
                raise DataError(
                    f"A is not positive definite: p^T A p = {curvature:.3g} in iteration"
                    f" {len(self.history) + 1}; conjugate gradients need a symmetric positive definite matrix"
                )
            alpha = self.r2 / curvature
            before, old = self.r2, self.r
            self.r = self.stored(self.r - alpha * image)
            self.r2 = _dot(self.r, self.r)
            self.x = self.x + alpha * self.p.double()
            self.history.append(math.sqrt(self.r2))
            if not math.isfinite(self.r2):
                return
            self.largest = max(self.largest, self.history[-1])
            reached = self.history[-1] <= target
            if self.delta is not None and (reached or self.history[-1] < self.delta * self.largest):
                if self._update_reliably(before, target):
                    return
                continue
            if reached:
                return
            # Polak and Ribiere: what rounding left of the old residual in the new one is taken out.
            sigma = self.r2 - _dot(self.r, old)
            self.p = self.stored(self.r + (sigma if sigma > 0 else self.r2) / before * self.p)

    def _update_reliably(self, before: float, target: float) -> bool:
        """Compute the residual anew; return whether that is the end."""
        self.y, self.x = self.y + self.x, torch.zeros_like(self.x)
        exact = self.b - self.operator.exact(self.y)
        size = float(torch.linalg.vector_norm(exact))
        self.updates += 1
        self.increases += size > self.start
        if size <= target or self.increases > MOST_INCREASES:
            self.r2 = size * size
            return True
        self.r = self.stored(exact)
        self.r2 = _dot(self.r, self.r)
        # The direction has to stay at right angles to the residual it came from.
        p = self.p - (_dot(self.r, self.p) / self.r2) * self.r
        self.p = self.stored(self.r + (self.r2 / before) * p)
        self.start = self.largest = math.sqrt(self.r2)
        return False


def _check_symmetric(operator: Operator) -> None:
    """Refuse an A with u^T A v != v^T A u for a random u and v; two products tell it of a function too."""
    generator = torch.Generator().manual_seed(0)
    u, v = (torch.randn(operator.n, generator=generator, dtype=torch.float64) for _ in range(2))
    of_u, of_v = operator.exact(u), operator.exact(v)
    size = torch.linalg.vector_norm(u) * torch.linalg.vector_norm(of_v)
    if abs(_dot(u, of_v) - _dot(v, of_u)) > 1e-8 * float(size):
        raise ArgumentError(
            "A is not symmetric, and conjugate gradients need that; solve it by fewbits.solve"
        )


def _dot(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.dot(a.double(), b.double()))


def _checked(b: Any, tol: float, delta: float | None) -> torch.Tensor:
    if not isinstance(b, torch.Tensor) or b.ndim != 1 or not b.is_floating_point():
        raise ArgumentError("b is no vector of real floats; expected shape (n,)")
    if not 0 < tol < 1:
        raise ArgumentError(f"tol={tol}; expected a relative residual between 0 and 1")
    if delta is not None and not 0 < delta < 1:
        raise ArgumentError(f"delta={delta}; expected a factor between 0 and 1, or None")
    wide = b.detach().to(torch.float64)
    if not bool(torch.isfinite(wide).all()):
        raise DataError("b holds NaN or infinity; remove them first")
    return wide


def _like(x: torch.Tensor, b: Any) -> Any:
    return x.numpy() if isinstance(b, np.ndarray) else x
