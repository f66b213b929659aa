"""Checks of the operands of a product: ordinary or packed tensors, their dtypes and shapes."""

from __future__ import annotations

from typing import Any

import torch

from fewbits.errors import ArgumentError, DTypeError
from fewbits.tensor.inputs import check_values
from fewbits.tensor.narrow.tensor import NarrowTensor


def check_matmul(a: Any, b: Any) -> None:
    """Raise unless ``a @ b`` is valid by the rules of torch.matmul.

    Raises:
        DTypeError: an operand is not a tensor of values, or the dtypes differ.
        ArgumentError: the shapes do not fit, or the operands lie on two devices.
    """
    _check(a, b, "a @ b")
    if not a.ndim or not b.ndim:
        raise _misfit(a, b, "a @ b", "at least one dimension each: multiply numbers with *")
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise _misfit(a, b, "a @ b", f"{a.shape[-1]} in place of {inner}: transpose or cut one")
    if not _broadcast(a.shape[:-2], b.shape[:-2]):
        raise _misfit(a, b, "a @ b", "leading dimensions that broadcast: reshape one")


def check_matvec(weight: Any, x: Any) -> None:
    """Raise unless ``weight`` is a matrix and ``x @ weight.T`` is valid.

    Raises:
        DTypeError: an operand is not a tensor of values, or the dtypes differ.
        ArgumentError: the shapes do not fit, or the operands lie on two devices.
    """
    _check(weight, x, "matvec")
    if weight.ndim != 2 or not x.ndim or x.shape[-1] != weight.shape[1]:
        raise _misfit(weight, x, "matvec", "(n, k) and (..., k): reshape or transpose one")


def _check(a: Any, b: Any, what: str) -> None:
    """Check types and dtypes."""
    for operand in (a, b):
        if not isinstance(operand, torch.Tensor):
            given = type(operand).__name__
            raise DTypeError(
                f"{what} of a {given}; expected two tensors: torch.as_tensor makes one of an array"
            )
        if not isinstance(operand, NarrowTensor):
            check_values(operand)
    check_devices(a, b, what)
    check_dtypes(a, b, what)


def check_dtypes(a: torch.Tensor, b: torch.Tensor, what: str) -> None:
    """Raise DTypeError unless both operands have one dtype."""
    if a.dtype != b.dtype:
        raise DTypeError(f"{what} of {a.dtype} and {b.dtype}; expected one dtype: convert one with .to()")


def check_devices(a: torch.Tensor, b: torch.Tensor, what: str) -> None:
    """Raise ArgumentError unless both operands lie on one device, which torch asks of all but ``meta``."""
    if a.device != b.device:
        raise ArgumentError(
            f"{what} on {a.device} and {b.device}; expected one device: move one with .to(device)"
        )


def check_summand(summand: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Raise unless ``summand``, a bias, leaves a product to which it is added its dtype and shape.

    Raises:
        DTypeError: its dtype differs.
        ArgumentError: its shape does not expand to the product's.
    """
    if summand.dtype != dtype:
        raise DTypeError(
            f"{summand.dtype} added to a product of {dtype}; expected one dtype: convert one with .to()"
        )
    own = tuple(summand.shape)
    lengths = zip(reversed(own), reversed(shape), strict=False)
    if len(own) > len(shape) or any(n not in (1, m) for n, m in lengths):
        raise ArgumentError(
            f"shape {own} added to a product of shape {tuple(shape)}; expected one that expands to it:"
            " reshape it"
        )


def check_ranks(a: torch.Tensor, b: torch.Tensor, what: str, ranks: tuple[int, int]) -> None:
    """Raise ArgumentError unless ``a`` and ``b`` have as many dimensions as an operation of torch takes."""
    if (a.ndim, b.ndim) != ranks:
        expected = f"{ranks[0]} and {ranks[1]} dimensions: reshape one, or take torch.matmul"
        raise _misfit(a, b, what, expected)


def check_batches(a: torch.Tensor, b: torch.Tensor, what: str) -> None:
    """Raise ArgumentError unless ``a`` and ``b`` hold as many matrices each: none stands for several."""
    if a.shape[0] != b.shape[0]:
        raise _misfit(a, b, what, "as many matrices of both: expand one, or take torch.matmul")


def _misfit(a: torch.Tensor, b: torch.Tensor, what: str, expected: str) -> ArgumentError:
    return ArgumentError(f"{what} of shapes {tuple(a.shape)} and {tuple(b.shape)}; expected {expected}")


def _broadcast(a: torch.Size, b: torch.Size) -> bool:
    pairs = zip(reversed(a), reversed(b), strict=False)
    return all(m == n or 1 in (m, n) for m, n in pairs)
