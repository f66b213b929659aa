"""Vectors of Krylov solvers: checks, scaling by powers of two, and complex vectors as pairs of reals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fewbits.errors import ArgumentError, DataError
from fewbits.typing import AnyArray


def wide(v: torch.Tensor) -> torch.Tensor:
    """Return v in float64 or complex128."""
    return v.to(torch.complex128 if v.is_complex() else torch.float64)


def reals(v: torch.Tensor) -> torch.Tensor:
    """Return a real v itself, a complex one, (..., n), as real and imaginary parts in turn, (..., 2n)."""
    return torch.view_as_real(v.resolve_conj()).flatten(-2) if v.is_complex() else v


def from_reals(parts: torch.Tensor, *, pairs: bool) -> torch.Tensor:
    """Return the vector whose :func:`reals` are ``parts``; complex with ``pairs``."""
    return torch.view_as_complex(parts.reshape(*parts.shape[:-1], -1, 2)) if pairs else parts


def times_power(v: torch.Tensor, exponent: int) -> torch.Tensor:
    """Return v 2^exponent, v in double precision; exact except for overflow and underflow."""
    if exponent == 0:
        return v
    if v.device.type != "cpu":
        parts_there, left = reals(v), exponent
        while left:  # in steps whose factors are normal numbers
            step = max(min(left, 1000), -1000)
            parts_there, left = parts_there * 2.0**step, left - step
        return from_reals(parts_there, pairs=v.is_complex())
    with np.errstate(over="ignore", under="ignore"):
        parts = np.ldexp(reals(v).numpy(), exponent)
    return from_reals(torch.from_numpy(parts), pairs=v.is_complex())


def largest(v: torch.Tensor) -> float:
    """Return the largest magnitude among real and imaginary parts; 0 for an empty v."""
    return float(reals(v).abs().max()) if v.numel() else 0.0


def exponent_of(size: float) -> int:
    """Return e with 2^(e - 1) <= size < 2^e; 0 for zero."""
    return math.frexp(size)[1]


def array(given: AnyArray | Sequence[object], name: str) -> torch.Tensor:
    """Return numbers of NumPy, PyTorch or nested lists as a tensor of float64 or complex128, where they lie.

    Raises:
        ArgumentError: not numeric, masked, sparse, more than double precision, or a tensor that requires a
            gradient.
        DataError: NaN or infinity.
    """
    v = numbers(given, name)
    if not bool(torch.isfinite(v).all()):
        raise DataError(f"{name} holds NaN or infinity; remove them first")
    return v


def real_array(given: ArrayLike | torch.Tensor, name: str) -> NDArray[np.float64]:
    """Return real numbers of NumPy, PyTorch or nested lists as float64; NaN and infinity may be among them.

    Raises:
        ArgumentError: complex numbers, or as for :func:`array`.
    """
    v = numbers(given, name)
    if v.is_complex():
        raise ArgumentError(f"{name} holds complex numbers; expected real ones")
    values: NDArray[np.float64] = v.numpy()
    return values


def real_number(value: object) -> float:
    """Return one real number, also that of an array or a tensor of no dimension; nan if this is none.

    Whole numbers and fractions beyond double precision are none either.
    """
    if isinstance(value, (np.ndarray, torch.Tensor)) and value.ndim == 0:
        value = value.item()
    try:
        return float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        return math.nan


def refuse_gradients(given: torch.Tensor, name: str) -> None:
    """Raise ArgumentError if a tensor requires a gradient, which no Krylov solver computes."""
    if given.requires_grad and torch.is_grad_enabled():
        raise ArgumentError(
            f"{name} requires a gradient, which no Krylov solver computes; pass {name}.detach(), or take"
            " fewbits.solve"
        )


def refuse_mask(given: object, name: str) -> None:
    """Raise ArgumentError for a masked array, whose mask no solver heeds."""
    if isinstance(given, np.ma.MaskedArray):
        raise ArgumentError(f"{name} is a masked array; expected numbers: fill it first")


def numbers(given: ArrayLike | torch.Tensor | Sequence[object], name: str) -> torch.Tensor:
    """Return numbers as :func:`array` does, NaN and infinity too; what is no tensor is copied.

    Raises:
        ArgumentError: as for :func:`array`.
    """
    if isinstance(given, torch.Tensor):
        refuse_gradients(given, name)
        if given.layout != torch.strided:
            raise ArgumentError(f"{name} is sparse; expected all numbers: convert it with .to_dense()")
        return wide(given.detach()).resolve_conj().resolve_neg()
    refuse_mask(given, name)
    if hasattr(given, "tocsr"):
        raise ArgumentError(f"{name} is sparse; expected all numbers: convert it with .toarray()")
    try:
        values = np.asarray(given)
    except ValueError:
        raise ArgumentError(f"{name} is a list of lists of different lengths; expected numbers") from None
    complex_ = values.dtype.kind == "c"
    if values.dtype.kind not in "buifc" or values.dtype.itemsize > (16 if complex_ else 8):
        raise ArgumentError(f"{name} is {values.dtype}; expected real or complex numbers, double at most")
    return torch.from_numpy(np.array(values, np.complex128 if complex_ else np.float64, order="C"))
