"""Flexible GMRES: one loop for dense systems in double precision and for packed bases.

Saad, A Flexible Inner-Outer Preconditioned GMRES Algorithm, 1993: the preconditioned directions are stored,
so the preconditioner may round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from fewbits.solvers.hessenberg import HessenbergQR


class Basis(Protocol):
    """The orthonormal vectors of k Krylov spaces and their preconditioned directions; callers store them.

    Vectors w are in double precision; the basis chooses their shape.
    """

    def expand(self) -> torch.Tensor:
        """Precondition the last vector, store the direction, and return A times it."""
        ...

    def orthogonalize(self, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Orthogonalize w against the j vectors; return it with the coefficients removed, (k, j)."""
        ...

    def norm(self, w: torch.Tensor) -> torch.Tensor:
        """Return the Euclidean norms of w, (k,) float64."""
        ...

    def append(self, w: torch.Tensor, length: torch.Tensor) -> None:
        """Add w / length as the next vector; zeros where the length, (k,), is zero."""
        ...

    def combine(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the sum of the first j directions with these weights, (k, j)."""
        ...


GoOn = Callable[[int, torch.Tensor, Callable[[], torch.Tensor]], bool]


def flexible_gmres(
    basis: Basis, size: torch.Tensor, dtype: torch.dtype, *, maxiter: int, go_on: GoOn
) -> tuple[torch.Tensor, int]:
    """Return the corrections that minimize k residuals over their Krylov spaces, and the iterations taken.

    Args:
        basis: holds the initial residuals divided by their norms.
        size: (k,) float64, those norms.
        dtype: float64 or complex128.
        maxiter: iterations at most.
        go_on: ``go_on(iteration, residuals, partial)`` is called after each iteration with the norms of the
            residuals, (k,), and a function that returns the correction so far; False stops.
    """
    place = size.device  # of the vectors; the small least squares problem is the host's
    problem = HessenbergQR(size.cpu().numpy(), maxiter, str(dtype).removeprefix("torch."))

    def solution() -> torch.Tensor:
        return basis.combine(problem.solution().to(place))

    for iteration in range(1, maxiter + 1):
        w = basis.expand()
        before = basis.norm(w)
        w, overlaps = basis.orthogonalize(w)
        w, more = basis.orthogonalize(w)  # twice is enough, also where the vectors are rounded
        length = basis.norm(w)
        if not bool(torch.isfinite(length).all()):
            break  # the solution is still that of the iteration before
        residuals = problem.append(
            *((overlaps + more).cpu().numpy(), length.cpu().numpy(), before.cpu().numpy())
        )
        left = torch.from_numpy(residuals).to(place)
        if not go_on(iteration, left, solution) or problem.complete.all():
            break
        basis.append(w, torch.where(torch.from_numpy(problem.complete).to(place), 0.0, length))
    return solution(), problem.columns
