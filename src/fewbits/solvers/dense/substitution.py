"""Substitution in double precision, our own for few columns: of float32 factors without a copy in float64.

For many columns, of complex factors and on a device it is torch's, which needs such a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from fewbits.kernels.arrays import dense
from fewbits.solvers.dense.factors import Substitute

Both = tuple[Substitute, Substitute]  # with A and with A^H
# Columns: for more, LAPACK is faster, even with a copy of float32 factors.
_FEW = 16
_FEW_OF_DOUBLE = 8  # of float64 factors, of which no copy is needed


def with_lu(lu: torch.Tensor, order: torch.Tensor, doubled: Callable[[], Both], *, across: bool) -> Both:
    """Return the substitutions with the LU factors packed in one row-major (n, n) matrix.

    Args:
        lu: float32, float64 or complex64.
        order: (n,), the row of A that each row of the factors represents; the column of A if ``across``.
        doubled: LAPACK's substitutions in float64 or complex128.
        across: whether these are the factors of the transpose, so that the upper triangle has the unit
            diagonal.
    """

    def substituted(b: torch.Tensor, transposed: bool) -> torch.Tensor:
        gathered = transposed == across
        # index_select and index_copy_, because b[order] of a few thousand numbers waits for torch's threads.
        x = (b.index_select(0, order) if gathered else b).mT.clone(memory_format=torch.contiguous_format)
        for upper in (transposed, not transposed):
            _solve_in(x, lu, upper=upper, unit=upper == across, transposed=transposed)
        if gathered:
            return x.mT
        return torch.empty_like(x.mT).index_copy_(0, order, x.mT)

    return _by_columns(lu, substituted, doubled)


def with_cholesky(lower: torch.Tensor, doubled: Callable[[], Both]) -> Both:
    """Return the substitution, twice, with a contiguous factor, (n, n), in row or column order."""
    upper = lower.stride(0) == 1  # column order: the rows of the transpose are contiguous
    triangle = lower.mT if upper else lower

    def substituted(b: torch.Tensor, _: bool) -> torch.Tensor:
        x = b.mT.clone(memory_format=torch.contiguous_format)
        for transposed in (upper, not upper):
            _solve_in(x, triangle, upper=upper, unit=False, transposed=transposed)
        return x.mT

    return _by_columns(lower, substituted, doubled)


def _solve_in(x: torch.Tensor, triangle: torch.Tensor, *, upper: bool, unit: bool, transposed: bool) -> None:
    dense.substitute(triangle.numpy(), x.numpy(), upper=upper, unit=unit, transposed=transposed)


def _by_columns(
    factors: torch.Tensor,
    substituted: Callable[[torch.Tensor, bool], torch.Tensor],
    doubled: Callable[[], Both],
) -> Both:
    """Return substitutions that choose by the number of columns; complex factors are LAPACK's."""
    many = cache(doubled)
    most = _FEW_OF_DOUBLE if factors.dtype == torch.float64 else _FEW
    own = not factors.is_complex() and factors.device.type == "cpu"

    def chosen(transposed: bool) -> Substitute:
        def substitute(b: torch.Tensor) -> torch.Tensor:
            return substituted(b, transposed) if own and b.shape[1] <= most else many()[transposed](b)

        return substitute

    return chosen(False), chosen(True)
