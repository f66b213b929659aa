"""LU factorization with partial pivoting whose trailing updates are products of narrow operands.

Recursive on the columns (Toledo, Locality of Reference in LU Decomposition with Partial Pivoting, 1997): the
products are as large as they can be. Haidar et al., Harnessing GPU Tensor Cores for Fast FP16 Arithmetic, SC
2018, narrow the trailing update only, as here; panels are factorized in float32. With terms of bfloat16 the
triangular systems between them are products too, those of a panel with the inverse where its entries are
small, since the units would wait for the systems.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg.lapack import dlaswp

from fewbits.kernels.arrays import dense
from fewbits.solvers.dense.factors import Factors, Substitute, unwritten
from fewbits.solvers.dense.factors import doubled as in_double
from fewbits.solvers.dense.rounded_products import TERMS, Update, rounded_update
from fewbits.solvers.dense.substitution import with_lu

_LARGEST = 16.0  # entry of an inverse that takes the place of a substitution: others lose digits
_PANEL = 128  # widest block of columns whose factorization has no narrow products
OWN_FROM = 3000  # unknowns; below, LAPACK's factorization in double precision may be faster than ours


def factorize_double(a: torch.Tensor, *, owned: bool = False) -> Factors:
    """Factorize (n, n) float64 or complex128; complex and small ones with LAPACK's GETRF.

    What is ``owned`` may be overwritten.
    """
    if not a.is_complex() and len(a) >= OWN_FROM and _on_host(a):
        low = a if owned else unwritten(tuple(a.shape), a.dtype, a.device).copy_(a)
        order = _in_place(low)
        return Factors(*with_lu(low, order, partial(_down, low, order), across=False), low.diagonal())
    lu, pivots, _ = torch.linalg.lu_factor_ex(a)
    return Factors(
        lambda b: torch.linalg.lu_solve(lu, pivots, b),
        lambda b: torch.linalg.lu_solve(lu, pivots, b, adjoint=True),
        lu.diagonal(),
    )


def factorize(
    low: torch.Tensor, factor: str, rows: torch.Tensor | None, columns: torch.Tensor | None
) -> Factors:
    """Factorize R A C, (n, n) float32 or complex64 and overwritten, with updates in ``factor``."""
    lapack = factor == "fp32" and (low.is_complex() or not _on_host(low))
    if lapack:
        across, pivots, info = low.mT, *(low.new_empty(s, dtype=torch.int32) for s in ((len(low),), ()))
        torch.linalg.lu_factor_ex(across, out=(across, pivots, info))
        order = _order(pivots, len(low))
        both, doubled = _across(across, pivots), lambda: _across(in_double(across), pivots)
    else:
        order = _in_place(low) if factor == "fp32" else _recurse(low, rounded_update(factor), factor in TERMS)
        both, doubled = _down(low, order), lambda: _down(in_double(low), order)
    widened = partial(with_lu, low, order, doubled, across=lapack)
    return Factors(*both, low.diagonal(), widened, rows, columns)


def _across(lu: torch.Tensor, pivots: torch.Tensor) -> tuple[Substitute, Substitute]:
    """Return the substitutions with LAPACK's factors of the transpose.

    LAPACK needs contiguous columns, and the contiguous rows of a matrix are the columns of its transpose. A
    transposition in memory would take a tenth of the time of the factorization at n = 1000.
    """

    def substitute(b: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = torch.linalg.lu_solve(lu, pivots, b.conj(), adjoint=True).conj()
        return x

    def transposed(b: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = torch.linalg.lu_solve(lu, pivots, b.conj()).conj()
        return x

    return substitute, transposed


def _down(lu: torch.Tensor, order: torch.Tensor) -> tuple[Substitute, Substitute]:
    """Return the substitutions with factors of A whose rows were permuted by ``order``."""

    def substitute(b: torch.Tensor) -> torch.Tensor:
        y = _substituted(lu, b.index_select(0, order))
        x: torch.Tensor = torch.linalg.solve_triangular(lu, y, upper=True)
        return x

    def transposed(b: torch.Tensor) -> torch.Tensor:
        y = torch.linalg.solve_triangular(lu.mH, b, upper=False)
        z = torch.linalg.solve_triangular(lu.mH, y, upper=True, unitriangular=True)
        return torch.empty_like(z).index_copy_(0, order, z)

    return substitute, transposed


def _recurse(a: torch.Tensor, update: Update, narrow_triangles: bool) -> torch.Tensor:
    """Factorize a (m, n), m >= n, in place; return the original row of each row."""
    n = a.shape[1]
    if n <= _PANEL:
        return _in_place(a)
    half = (n // 2 + _PANEL - 1) // _PANEL * _PANEL
    left, right = a[:, :half], a[:, half:]
    first = _recurse(left, update, narrow_triangles)
    _permute(right, first)
    if narrow_triangles:
        _solve_lower(left[:half], right[:half], update)
    else:
        right[:half] = _substituted(left[:half], right[:half])
    update(right[half:], left[half:], right[:half])
    second = _recurse(right[half:], update, narrow_triangles)
    _permute(left[half:], second)
    return torch.cat([first[:half], first[half:][second]])


def _solve_lower(a: torch.Tensor, b: torch.Tensor, update: Update) -> None:
    """Put over b, (n, m), the solution with the lower triangle of a, (n, n), whose diagonal is ones."""
    n = len(a)
    if n <= _PANEL:  # by the inverse: a product takes a quarter of the time of a substitution
        inverse = _substituted(a, torch.eye(n, dtype=a.dtype, device=a.device))
        b.copy_(inverse @ b if bool(inverse.abs().amax() <= _LARGEST) else _substituted(a, b))
        return
    half = (n // 2 + _PANEL - 1) // _PANEL * _PANEL
    _solve_lower(a[:half, :half], b[:half], update)
    update(b[half:], a[half:, :half], b[:half])
    _solve_lower(a[half:, half:], b[half:], update)


def _substituted(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the solution, (n, m), with the lower triangle of a, (n, n), whose diagonal is ones."""
    x: torch.Tensor = torch.linalg.solve_triangular(a, b, upper=False, unitriangular=True)
    return x


def _in_place(a: torch.Tensor) -> torch.Tensor:
    """Factorize a (m, n), m >= n, in place and in its own precision; return the original row of each row."""
    if not a.is_complex() and _on_host(a):
        return _permutation(dense.factorize_lu(a.numpy()), len(a))
    lu, pivots, _ = torch.linalg.lu_factor_ex(a)
    a.copy_(lu)
    return _order(pivots, len(a))


def _on_host(a: torch.Tensor) -> bool:
    """Return whether our own factorization applies; on a device it is torch's."""
    return a.device.type == "cpu"


def _permute(a: torch.Tensor, moved: torch.Tensor) -> None:
    """Put row ``moved[i]`` of a at i; only what changes is copied."""
    places = (moved != torch.arange(len(moved), device=moved.device)).nonzero()[:, 0]
    a[places] = a[moved[places]]


def _order(pivots: torch.Tensor, rows: int) -> torch.Tensor:
    """Return, on their device, the permutation that LAPACK's pivots stand for; the host reads them."""
    return _permutation(pivots.cpu().numpy() - 1, rows).to(pivots.device)


def _permutation(exchanges: NDArray[np.integer], rows: int) -> torch.Tensor:
    """Return the permutation that exchanges of rows, one after the other, make."""
    places = np.arange(rows, dtype=np.float64)[:, None]
    return torch.from_numpy(dlaswp(places, exchanges)[:, 0]).long()
