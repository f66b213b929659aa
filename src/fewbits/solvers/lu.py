"""LU factorization with partial pivoting whose trailing updates are products of narrow operands.

Recursive on the columns (Toledo, Locality of Reference in LU Decomposition with Partial Pivoting, 1997): the
products are as large as they can be. Haidar et al., Harnessing GPU Tensor Cores for Fast FP16 Arithmetic, SC
2018, narrow the trailing update only, as here; panels and triangular solves are LAPACK's in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fewbits.solvers.products import product

_PANEL = 128  # columns that LAPACK factorizes whole
_REAL = {torch.float64: torch.float32, torch.complex128: torch.complex64}


@dataclass(frozen=True)
class Factors:
    """P R A C = L U: factors in float32 or float64, and the powers of two that balance A.

    Attributes:
        lu: (n, n), L below the diagonal, U on and above it.
        order: the row of R A C that each row of L U stands for.
        rows: R, (n,) float64.
        columns: C, (n,) float64.
    """

    lu: torch.Tensor
    order: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor

    def solve(self, b: torch.Tensor) -> torch.Tensor:
        """Return C U^-1 L^-1 P R b for b, (n, k), in b's dtype; the triangular solves run in the factors'."""
        y = (self.rows[:, None] * b)[self.order]
        # Residuals may lie beyond float32; their direction is what counts.
        size = y.abs().amax(0).clamp(min=torch.finfo(torch.float64).tiny)
        y = (y / size).to(self.lu.dtype)
        y = torch.linalg.solve_triangular(self.lu, y, upper=False, unitriangular=True)
        y = torch.linalg.solve_triangular(self.lu, y, upper=True)
        found: torch.Tensor = self.columns[:, None] * (y.to(b.dtype) * size)
        return found


def balanced(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return powers of two, (n,) and (n,), that bring the largest entry of each row and column to about one.

    Higham, Pranesh and Zounon, Squeezing a Matrix into Half Precision, 2019, algorithm 2.3, with powers of
    two: it rounds nothing.
    """

    def inverse_power(size: torch.Tensor) -> torch.Tensor:
        exponent = torch.frexp(size).exponent
        return torch.where(size > 0, torch.ldexp(torch.ones_like(size), -exponent), 1.0)

    rows = inverse_power(a.abs().amax(1))
    return rows, inverse_power((rows[:, None] * a.abs()).amax(0))


def factorize(a: torch.Tensor, factor: str) -> tuple[Factors, bool]:
    """Factorize a float64 or complex128 matrix; also return whether every pivot is finite and not zero."""
    if factor == "fp64":
        rows = columns = torch.ones(len(a), dtype=torch.float64)
        lu, pivots, _ = torch.linalg.lu_factor_ex(a)
        order = _order(pivots)
    else:
        rows, columns = balanced(a)
        low = (rows[:, None] * a * columns).to(_REAL[a.dtype])
        if factor == "fp32" or a.is_complex():
            lu, pivots, _ = torch.linalg.lu_factor_ex(low)
            order = _order(pivots)
        else:
            lu = low.contiguous()
            order = _recurse(lu, product(factor))
    diagonal = lu.diagonal()
    return Factors(lu, order, rows, columns), bool((torch.isfinite(diagonal.abs()) & (diagonal != 0)).all())


def _recurse(a: torch.Tensor, multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Factorize a (m, n), m >= n, in place; return the row of a that each row of it now stands for."""
    m, n = a.shape
    if n <= _PANEL:
        lu, pivots, _ = torch.linalg.lu_factor_ex(a)
        a.copy_(lu)
        return _order(pivots, m)
    half = (n // 2 + _PANEL - 1) // _PANEL * _PANEL
    left, right = a[:, :half], a[:, half:]
    first = _recurse(left, multiply)
    _permute(right, first)
    right[:half] = torch.linalg.solve_triangular(left[:half], right[:half], upper=False, unitriangular=True)
    right[half:] -= multiply(left[half:], right[:half])
    second = _recurse(right[half:], multiply)
    _permute(left[half:], second)
    return torch.cat([first[:half], first[half:][second]])


def _permute(a: torch.Tensor, moved: torch.Tensor) -> None:
    """Put row ``moved[i]`` of a at i; only what changes is copied."""
    places = (moved != torch.arange(len(moved))).nonzero()[:, 0]
    a[places] = a[moved[places]]


def _order(pivots: torch.Tensor, rows: int | None = None) -> torch.Tensor:
    """Return the permutation that LAPACK's one-based row exchanges make."""
    order = list(range(rows or len(pivots)))
    for i, p in enumerate(pivots.tolist()):
        order[i], order[p - 1] = order[p - 1], order[i]
    return torch.tensor(order, dtype=torch.int64)
