"""Substitution in double precision with float32 factors, which are read as they lie where that is faster."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from fewbits.kernels import native, threads
from fewbits.solvers.factors import Substitute

Both = tuple[Substitute, Substitute]  # with A and with A^H
_FEW = 16  # columns: LAPACK takes more of them together, which makes up for a copy of the factors in float64


def with_lu(lu: torch.Tensor, order: torch.Tensor, doubled: Callable[[], Both], *, across: bool) -> Both:
    """Return the substitutions with two real triangles in one square, (n, n), whose rows follow each other.

    Args:
        lu: float32.
        order: (n,), the rows of A that the rows of the factors stand for; its columns where ``across``.
        doubled: LAPACK's substitutions with a copy in float64.
        across: these are the factors of the transpose, so that ones are on the upper diagonal.
    """

    def substituted(b: torch.Tensor, transposed: bool) -> torch.Tensor:
        gathered = transposed == across
        x = _solved(lu, b[order] if gathered else b, transposed, lower=not across, upper=across)
        if gathered:
            return x
        found = torch.empty_like(x)
        found[order] = x
        return found

    return _by_columns(lu, substituted, doubled)


def with_cholesky(lower: torch.Tensor, doubled: Callable[[], Both]) -> Both:
    """Return the substitutions with a float32 factor, (n, n), whose rows or columns follow each other."""
    across = lower.stride(0) == 1
    triangle = lower.mT if across else lower

    def substituted(b: torch.Tensor, _: bool) -> torch.Tensor:
        half = _solved(triangle, b, across, **{"upper" if across else "lower": False})
        return _solved(triangle, half, not across, **{"upper" if across else "lower": False})

    return _by_columns(lower, substituted, doubled)


def _solved(t: torch.Tensor, b: torch.Tensor, transposed: bool, **unit: bool) -> torch.Tensor:
    """Solve with each triangle, which has ones on its diagonal or not; the lower one is the first."""
    x = b.mT.clone(memory_format=torch.contiguous_format).numpy()
    for triangle in sorted(unit, reverse=transposed):
        native.substitute(
            t.numpy(), x, threads(), upper=triangle == "upper", unit=unit[triangle], transposed=transposed
        )
    return torch.from_numpy(x).mT


def _by_columns(
    factors: torch.Tensor,
    substituted: Callable[[torch.Tensor, bool], torch.Tensor],
    doubled: Callable[[], Both],
) -> Both:
    """Return what is faster for few columns and for many; complex factors are always copied."""
    many = cache(doubled)

    def substitute(b: torch.Tensor) -> torch.Tensor:
        few = b.shape[1] <= _FEW and not factors.is_complex()
        return substituted(b, False) if few else many()[0](b)

    def transposed(b: torch.Tensor) -> torch.Tensor:
        few = b.shape[1] <= _FEW and not factors.is_complex()
        return substituted(b, True) if few else many()[1](b)

    return substitute, transposed
