"""One factorization of a dense matrix in one precision, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fewbits.solvers.dense import cholesky, lu, qr
from fewbits.solvers.dense.factors import Factors, narrowed
from fewbits.solvers.solution import REASONS


@dataclass(frozen=True)
class Kept:
    """Factors, or None with the code and the reason of a Stage."""

    factors: Factors | None
    code: int = 0
    reason: str = ""


def factorize(a: torch.Tensor, method: str, factor: str, single: torch.Tensor | None = None) -> Kept:
    """Factorize a square matrix.

    Args:
        a: (n, n) float64 or complex128, equilibrated.
        method: LU, Cholesky, or in double precision QR.
        factor: of a :class:`Precision`.
        single: a in float32, where it is there.
    """
    if method == "Cholesky":
        return _by_cholesky(a, factor)
    if method == "QR":
        return Kept(qr.double(a))
    if factor == "fp64":
        found = lu.double(a)
    else:
        if factor == "fp32" and single is not None:
            low, rows, columns = single, None, None
        else:
            low, rows, columns = narrowed(a, factor, scaled=factor != "fp32")
        found = lu.narrow(low, factor, rows, columns)
        if not found.finite:
            return Kept(None, -2, REASONS[-2])
    if found.zero_pivot is not None:
        return Kept(None, -3, f"pivot {found.zero_pivot} of {len(a)} is exactly zero")
    return Kept(found)


def _by_cholesky(a: torch.Tensor, factor: str) -> Kept:
    if factor == "fp64":
        found = cholesky.double(a)
    else:
        low, scale = cholesky.narrowed(a, factor)
        found = cholesky.narrow(low, factor, scale)
    if found is None:
        return Kept(None, -3, "a pivot is not positive")
    return Kept(found) if found.finite else Kept(None, -2, REASONS[-2])
