"""Arrays of either family as tensors in double precision, and back; what no system can hold is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers.factors import doubled


def tensor(x: Any, name: str) -> torch.Tensor:
    """Return x, a numpy.ndarray or torch.Tensor of floats, in float64 or complex128 on the CPU.

    Raises:
        ArgumentError: it is neither.
    """
    found = x
    if isinstance(x, np.ndarray):
        if not x.dtype.isnative or x.dtype.kind not in "fc" or x.dtype.itemsize > 16:
            raise ArgumentError(f"{name} is {x.dtype}; expected a NumPy array or a torch tensor of floats")
        # Tensors have no negative strides, and writing to them is not meant here.
        found = torch.from_numpy(x if x.flags.writeable and min(x.strides, default=0) >= 0 else x.copy())
    if not isinstance(found, torch.Tensor) or not (found.is_floating_point() or found.is_complex()):
        kind = getattr(x, "dtype", type(x).__name__)
        raise ArgumentError(f"{name} is {kind}; expected a NumPy array or a torch tensor of floats")
    return doubled(found.detach().cpu())


def finite(x: torch.Tensor, name: str) -> None:
    """Refuse NaN and infinity."""
    # A sum is read in a fifth of the time; it may overflow where nothing is infinite.
    if not math.isfinite(abs(x.sum().item())) and not bool(torch.isfinite(x).all()):
        raise DataError(f"{name} holds NaN or infinity; remove them first")


def checked_columns(b: Any, rows: int) -> torch.Tensor:
    """Return right-hand sides as (rows, k) in double precision.

    Raises:
        ArgumentError: a shape that does not fit.
        DataError: NaN or infinity in it.
    """
    given = tensor(b, "b")
    if given.ndim not in (1, 2) or given.shape[0] != rows:
        raise ArgumentError(f"b has the shape {tuple(given.shape)}; expected ({rows},) or ({rows}, k)")
    finite(given, "b")
    return given.reshape(rows, math.prod(given.shape[1:]))


def as_given(x: torch.Tensor, b: Any) -> Any:
    """Return the columns of x, (n, k), of b's family, and (n,) where b had one axis."""
    shaped = x.reshape(len(x), *b.shape[1:])
    return shaped.numpy() if isinstance(b, np.ndarray) else shaped.to(b.device)
