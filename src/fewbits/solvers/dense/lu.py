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
Exchanges = NDArray[np.int64]  # the row, or one below, that changed places with each row, one after the other
OWN_FROM = 3000  # unknowns; below, LAPACK's factorization in double precision may be faster than ours


def factorize_double(a: torch.Tensor, *, owned: bool = False) -> Factors:
    """Factorize (n, n) float64 or complex128; complex and small ones with LAPACK's GETRF.

    What is ``owned`` may be overwritten.
    """
    if not a.is_complex() and len(a) >= OWN_FROM and _on_host(a):
        low = a if owned else unwritten(tuple(a.shape), a.dtype, a.device).copy_(a)
        order = _permutation(_in_place(low), len(low))
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
        order = _permutation(_exchanges(pivots), len(low)).to(low.device)
        both, doubled = _across(across, pivots), lambda: _across(in_double(across), pivots)
    else:
        exchanges = _in_place(low) if factor == "fp32" else _Recursion(low, factor).run()
        order = _permutation(exchanges, len(low)).to(low.device)
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


class _Recursion:
    """The factorization of one matrix, (n, n), in place.

    Args:
        a: the matrix.
        factor: of the products.
    """

    def __init__(self, a: torch.Tensor, factor: str) -> None:
        self._a = a
        self._update: Update = rounded_update(factor)
        self._narrow_triangles = factor in TERMS
        # Of each triangle of a panel, by its first row; None where it has large entries.
        self._inverses: dict[int, torch.Tensor | None] = {}
        self._room = unwritten((_PANEL * len(a),), a.dtype, a.device)

    def run(self) -> Exchanges:
        """Return the row that changed places with each row."""
        return self._factorize(0, len(self._a))

    def _factorize(self, begin: int, end: int) -> Exchanges:
        """Factorize columns ``begin`` to ``end - 1`` from row ``begin`` on; exchanges count from there."""
        columns = self._a[begin:, begin:end]
        n = end - begin
        if n <= _PANEL:
            exchanges = _in_place(columns)
            if self._narrow_triangles:
                self._inverses[begin] = _inverse(columns[:n])
            return exchanges
        half = _half(n)
        left, right = columns[:, :half], columns[:, half:]
        first = self._factorize(begin, begin + half)
        _exchange(right, first)
        if self._narrow_triangles:
            self._solve_lower(begin, left[:half], right[:half])
        else:
            right[:half] = _substituted(left[:half], right[:half])
        self._update(right[half:], left[half:], right[:half])
        second = self._factorize(begin + half, end)
        _exchange(left[half:], second)
        return np.concatenate([first, second + half])

    def _solve_lower(self, begin: int, a: torch.Tensor, b: torch.Tensor) -> None:
        """Put over b, (n, m), the solution with the triangle a, (n, n), of row ``begin`` and those below."""
        n, m = b.shape
        if n > _PANEL:
            half = _half(n)
            self._solve_lower(begin, a[:half, :half], b[:half])
            self._update(b[half:], a[half:, :half], b[:half])
            self._solve_lower(begin + half, a[half:, half:], b[half:])
            return
        inverse = self._inverses[begin]
        if inverse is None:
            b.copy_(_substituted(a, b))
        else:  # a product takes a quarter of the time of a substitution
            b.copy_(torch.mm(inverse, b, out=self._room[: n * m].view(n, m)))


def _half(n: int) -> int:
    return (n // 2 + _PANEL - 1) // _PANEL * _PANEL


def _inverse(a: torch.Tensor) -> torch.Tensor | None:
    """Return the inverse of the lower triangle of a, (n, n), with ones on it, if its entries are small."""
    inverse = _substituted(a, torch.eye(len(a), dtype=a.dtype, device=a.device))
    return inverse if bool(inverse.abs().amax() <= _LARGEST) else None


def _substituted(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the solution, (n, m), with the lower triangle of a, (n, n), whose diagonal is ones."""
    x: torch.Tensor = torch.linalg.solve_triangular(a, b, upper=False, unitriangular=True)
    return x


def _in_place(a: torch.Tensor) -> Exchanges:
    """Factorize a (m, n), m >= n, in place and in its own precision; return the exchanges of rows."""
    if not a.is_complex() and _on_host(a):
        return dense.factorize_lu(a.numpy())
    lu, pivots, _ = torch.linalg.lu_factor_ex(a)
    a.copy_(lu)
    return _exchanges(pivots)


def _on_host(a: torch.Tensor) -> bool:
    """Return whether our own factorization applies; on a device it is torch's."""
    return a.device.type == "cpu"


def _exchange(a: torch.Tensor, exchanges: Exchanges) -> None:
    """Have the rows of a change places."""
    if _on_host(a):
        dense.exchange_rows(a.view(torch.float32).numpy(), exchanges)
        return
    moved = _permutation(exchanges, len(a)).to(a.device)
    places = (moved != torch.arange(len(moved), device=moved.device)).nonzero()[:, 0]
    a[places] = a[moved[places]]


def _exchanges(pivots: torch.Tensor) -> Exchanges:
    """Return the exchanges that LAPACK's pivots stand for; the host reads them."""
    return pivots.cpu().numpy().astype(np.int64) - 1


def _permutation(exchanges: Exchanges, rows: int) -> torch.Tensor:
    """Return the original row of each row after the exchanges."""
    places = np.arange(rows, dtype=np.float64)[:, None]
    return torch.from_numpy(dlaswp(places, exchanges)[:, 0]).long()
