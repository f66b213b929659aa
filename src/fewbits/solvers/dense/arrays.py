"""Conversion of arrays and tensors to double precision where they lie; unusable input is rejected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers.dense.factors import doubled
from fewbits.solvers.solution import of_family
from fewbits.typing import AnyArray, Array

Numbers: TypeAlias = AnyArray | Sequence[object]
"""An array, or nested lists of numbers."""

_EXPECTED = "expected a NumPy array, a torch tensor or nested lists of real or complex numbers"


def with_gradient(x: Numbers, name: str) -> torch.Tensor:
    """Return x in float64 or complex128 on its device; if x is a torch.Tensor, gradients flow back to it.

    Args:
        x: numpy.ndarray, torch.Tensor or nested lists of integers, floats or complex numbers.
        name: what error messages call x.

    Raises:
        ArgumentError: x is none of these, or is sparse or masked.
    """
    if isinstance(x, torch.Tensor):
        if x.layout != torch.strided or x.is_quantized:
            raise ArgumentError(f"{name} has the layout {x.layout}; {_EXPECTED}: {name}.to_dense()")
        return doubled(x).resolve_neg()
    if isinstance(x, np.ma.MaskedArray):
        raise ArgumentError(f"{name} is a masked array; {_EXPECTED}. Fill what is masked first")
    if hasattr(x, "tocsr"):
        others = ", Krylov solvers take it" if name == "A" else ""
        raise ArgumentError(f"{name} is sparse; {_EXPECTED}. {name}.toarray() is one{others}")
    try:
        values = np.asarray(x)
    except ValueError as error:
        raise ArgumentError(f"{name} is no array: {error}; {_EXPECTED}") from None
    if values.dtype.kind not in "fciub" or values.dtype.itemsize > (16 if values.dtype.kind == "c" else 8):
        raise ArgumentError(f"{name} is of dtype {values.dtype}; {_EXPECTED}")
    wide = values.astype(np.complex128 if values.dtype.kind == "c" else np.float64, copy=False)
    # Tensors have no negative strides, and PyTorch warns of arrays that cannot be written to.
    plain = wide.flags.writeable and min(wide.strides, default=0) >= 0
    return torch.from_numpy(wide if plain else wide.copy())


def tensor(x: Numbers, name: str) -> torch.Tensor:
    """Return x as :func:`with_gradient` does, detached from its gradient."""
    return with_gradient(x, name).detach()


def shape(x: Numbers) -> tuple[int, ...]:
    """Return the shape of an array or of nested lists; () for anything else."""
    try:
        return tuple(x.shape) if hasattr(x, "shape") else np.shape(np.asarray(x))
    except ValueError:
        return ()  # ragged; with_gradient refuses it


def check_finite(x: torch.Tensor, name: str) -> None:
    """Raise DataError if x holds NaN or infinity.

    Raises:
        DataError: x holds one; the message calls it ``name``.
    """
    # A sum takes a fifth of the time of a test of each entry; it may overflow although every entry is finite.
    if not math.isfinite(abs(x.sum().item())) and not bool(torch.isfinite(x).all()):
        raise DataError(f"{name} holds NaN or infinity; remove them first")


def check_together(a: torch.Tensor, b: torch.Tensor) -> None:
    """Raise ArgumentError if A and b lie on two devices.

    Raises:
        ArgumentError: they do; nothing is copied in silence.
    """
    if a.device != b.device:
        raise ArgumentError(
            f"A is on {a.device} and b on {b.device}; a system is solved where both lie: move one of them,"
            f" as b with torch.as_tensor(b).to({str(a.device)!r})"
        )


def columns_of(b: AnyArray, a: torch.Tensor) -> torch.Tensor:
    """Return right-hand sides of ``a`` as (rows, k) in double precision, with their gradient.

    Raises:
        ArgumentError: a shape that does not fit, or another device.
    """
    given, rows = with_gradient(b, "b"), len(a)
    check_together(a, given)
    if given.ndim not in (1, 2) or given.shape[0] != rows:
        raise ArgumentError(f"b has the shape {tuple(given.shape)}; expected ({rows},) or ({rows}, k)")
    return given.reshape(rows, math.prod(given.shape[1:]))


def checked_columns(b: AnyArray, a: torch.Tensor) -> torch.Tensor:
    """Return the values of right-hand sides of ``a`` as (rows, k).

    Raises:
        ArgumentError: a shape that does not fit, or another device.
        DataError: NaN or infinity in it.
    """
    given = columns_of(b, a).detach()
    check_finite(given, "b")
    return given


def as_given(x: torch.Tensor, b: Array) -> Array:
    """Return x, (n, k), as an array or tensor, whichever b is; as (n,) if b has one axis.

    Raises:
        ArgumentError: x has a gradient, which a NumPy array cannot carry.
    """
    return of_family(x.reshape(len(x), *shape(b)[1:]), b)
