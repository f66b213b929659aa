"""Anything that multiplies a vector: dense and sparse matrices, and functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fewbits.errors import ArgumentError, DataError

Apply = Callable[[torch.Tensor], torch.Tensor]


class Operator:
    """A square matrix as two functions: exact, in float64, and cheap, in float32.

    Args:
        a: a torch.Tensor (dense or sparse), a numpy.ndarray, a SciPy sparse matrix, or a function from a
            float64 or float32 torch vector to one of the same dtype and length.
        n: unknowns, for a function.

    Raises:
        ArgumentError: none of these, or not square.
        DataError: NaN or infinity among the values.
    """

    def __init__(self, a: Any, n: int) -> None:
        self.n = n
        self.exact: Apply
        self.cheap: Apply
        if callable(a) and not isinstance(a, torch.Tensor):
            self.exact = self.cheap = a
            return
        if hasattr(a, "tocsr"):
            rows = a.tocsr().astype(np.float64)
            _check(tuple(rows.shape), n, bool(np.isfinite(rows.data).all()))
            narrow = rows.astype(np.float32)
            self.exact = lambda v: torch.from_numpy(rows @ v.numpy())
            self.cheap = lambda v: torch.from_numpy(narrow @ v.numpy())
            return
        wide = _matrix(a)
        values = wide if wide.layout == torch.strided else wide.values()
        _check(tuple(wide.shape), n, bool(torch.isfinite(values).all()))
        self.exact, self.cheap = wide.matmul, wide.to(torch.float32).matmul


def _check(shape: tuple[int, ...], n: int, finite: bool) -> None:
    if shape != (n, n):
        raise ArgumentError(
            f"A has the shape {shape}, b has {n} values; expected a square matrix of that size"
        )
    if not finite:
        raise DataError("A holds NaN or infinity; remove them first")


def _matrix(a: Any) -> torch.Tensor:
    if isinstance(a, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(a, np.float64))
    if isinstance(a, torch.Tensor):
        wide = a.detach().to(torch.float64)
        return wide.coalesce() if wide.layout == torch.sparse_coo else wide
    raise ArgumentError(
        f"A is a {type(a).__name__}; expected a torch tensor, a NumPy array, a SciPy sparse matrix or a"
        " function"
    )
