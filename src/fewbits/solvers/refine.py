"""Iterative refinement: classical, and by GMRES with the factors as preconditioner."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

MOST_STEPS = 50  # of refinement, as in cuSOLVER; LAPACK's DSGESV takes 30
MOST_INNER = 50  # of GMRES in one of them
INNER_TOLERANCE = 1e-4
EPS = 2.0**-53

Apply = Callable[[torch.Tensor], torch.Tensor]


def refine(a: torch.Tensor, b: torch.Tensor, solve: Apply, refinement: str) -> tuple[torch.Tensor, int]:
    """Return x, (n, k), and the number of steps, or -50 where it did not converge.

    Converged is every right-hand side with max |r| <= sqrt(n) max |x| |A| eps, infinity norms (LAPACK's
    DSGESV).
    """
    norm = float(a.abs().sum(1).max())
    bound = math.sqrt(len(a)) * norm * EPS
    x = solve(b)
    before = math.inf
    for step in range(MOST_STEPS + 1):
        r = b - a @ x
        sizes, solution = r.abs().amax(0), x.abs().amax(0)
        if not bool(torch.isfinite(sizes).all()):
            return x, -50
        if bool((sizes <= bound * solution).all()):
            return x, step
        now = float((sizes / (bound * solution).clamp(min=torch.finfo(torch.float64).tiny)).max())
        if refinement == "none" or (refinement == "classical" and now > before / 2):
            return x, -50
        if refinement == "gmres" and step >= 2 and now > before * 0.9:
            return x, -50
        before = now
        x = x + (solve(r) if refinement == "classical" else _corrections(a, r, solve))
    return x, -50


def _corrections(a: torch.Tensor, r: torch.Tensor, solve: Apply) -> torch.Tensor:
    return torch.stack([gmres(a, column, solve) for column in r.unbind(1)], 1)


def gmres(a: torch.Tensor, r: torch.Tensor, solve: Apply) -> torch.Tensor:
    """Return d with |r - A d| at most INNER_TOLERANCE |r|, right-preconditioned, from zero; (n,) to (n,).

    Saad and Schultz, GMRES, 1986, with modified Gram-Schmidt.
    """
    size = torch.linalg.vector_norm(r)
    if size == 0:
        return torch.zeros_like(r)
    basis, h = [r / size], torch.zeros(MOST_INNER + 1, MOST_INNER, dtype=r.dtype)
    directions: list[torch.Tensor] = []
    y = torch.zeros(0, dtype=r.dtype)
    for j in range(MOST_INNER):
        directions.append(solve(basis[j][:, None])[:, 0])
        w = a @ directions[j]
        for i, v in enumerate(basis):
            h[i, j] = torch.vdot(v, w)
            w = w - h[i, j] * v
        h[j + 1, j] = torch.linalg.vector_norm(w)
        target = torch.zeros(j + 2, dtype=r.dtype)
        target[0] = size
        small = h[: j + 2, : j + 1]
        y = torch.linalg.lstsq(small, target[:, None]).solution[:, 0]
        left = torch.linalg.vector_norm(target - small @ y)
        if not bool(torch.isfinite(left)) or left <= INNER_TOLERANCE * size or h[j + 1, j].abs() == 0:
            break
        basis.append(w / h[j + 1, j])
    return torch.stack(directions, 1) @ y
