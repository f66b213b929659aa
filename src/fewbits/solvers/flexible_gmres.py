"""GMRES with a preconditioner on the right, for several right-hand sides side by side."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fewbits.solvers.system import product

Apply = Callable[[torch.Tensor], torch.Tensor]


def flexible_gmres(
    a: torch.Tensor,
    r: torch.Tensor,
    solve: Apply,
    *,
    tolerance: float,
    most: int,
    go_on: Callable[[int, float], bool],
) -> tuple[torch.Tensor, int]:
    """Return d, (n, k), with |r - A d| at most ``tolerance`` |r| in every column, and the iterations taken.

    Saad, A Flexible Inner-Outer Preconditioned GMRES Algorithm, 1993: the directions are kept, so a
    preconditioner that rounds does no harm; Gram-Schmidt twice.

    Args:
        a: (n, n).
        r: (n, k), of a's dtype, which is that of all arithmetic here.
        solve: the preconditioner, (n, k) to (n, k).
        tolerance: where to stop.
        most: iterations.
        go_on: asked after each iteration with its number and the largest relative residual.
    """
    n, k = r.shape
    size = torch.linalg.vector_norm(r, dim=0)
    basis = torch.zeros(k, most + 1, n, dtype=a.dtype)  # one after the other in memory, as products want them
    directions = torch.zeros(k, most, n, dtype=a.dtype)
    h = torch.zeros(k, most + 1, most, dtype=a.dtype)
    target = torch.zeros(k, most + 1, 1, dtype=a.dtype)
    target[:, 0, 0] = size
    basis[:, 0] = _divided(r, size).mT
    y = torch.zeros(k, 0, 1, dtype=a.dtype)
    for j in range(most):
        direction = solve(basis[:, j].mT)
        directions[:, j] = direction.mT
        w = product(a, direction).mT[:, :, None]
        known = basis[:, : j + 1]
        for _ in range(2):
            overlap = known.conj() @ w
            w = w - known.mT @ overlap
            h[:, : j + 1, j] += overlap[:, :, 0]
        length = torch.linalg.vector_norm(w[:, :, 0], dim=1)
        h[:, j + 1, j] = length
        if not bool(torch.isfinite(length).all()):
            break  # y is still that of the iteration before
        small, goal = h[:, : j + 2, : j + 1], target[:, : j + 2]
        y = torch.linalg.lstsq(small, goal, driver="gelsy").solution
        left = torch.linalg.vector_norm((goal - small @ y)[:, :, 0], dim=1)
        relative = float(torch.where(size > 0, left / size, 0.0).max())
        if relative <= tolerance or not go_on(j + 1, relative):
            break
        basis[:, j + 1] = _divided(w[:, :, 0].mT, length).mT
    taken = y.shape[1]
    return (directions[:, :taken].mT @ y)[:, :, 0].mT, taken


def _divided(x: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """Return the columns of x over ``length``; zeros where nothing is left, as after an exact solution."""
    return torch.where(length > 0, x / length, 0.0)
