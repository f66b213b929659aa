"""Conversion of torch.Tensor and numpy.ndarray to NumPy arrays for the kernels, and of results back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from fewbits.errors import ArgumentError, DataError
from fewbits.kernels.bits import reals
from fewbits.kernels.bits.reals import BFLOAT16
from fewbits.tensor.inputs import check_values
from fewbits.typing import AnyArray

if TYPE_CHECKING:
    import torch


def is_torch(x: object) -> TypeGuard[torch.Tensor]:
    """Return whether ``x`` is a torch.Tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def is_number(x: object) -> bool:
    """Return whether ``x`` is a real number, or a tensor of one."""
    return isinstance(x, Real) or (is_torch(x) and x.numel() == 1)


def is_narrow(x: object) -> bool:
    """Return whether ``x`` is a NarrowTensor, without importing torch."""
    home = sys.modules.get("fewbits.tensor.narrow.tensor")
    return home is not None and isinstance(x, home.NarrowTensor)


def opened(x: Any) -> tuple[NDArray[Any], Callable[[NDArray[Any]], Any]]:
    """Return ``x`` as an array for :mod:`fewbits.kernels`, and the function that converts a result back.

    Raises:
        DTypeError: x is neither a tensor nor an array of floating-point numbers; see
            :func:`fewbits.tensor.inputs.check_values`.
    """
    check_values(x)
    return _opened(x)


def _opened(x: Any) -> tuple[NDArray[Any], Callable[[NDArray[Any]], Any]]:
    if is_torch(x):
        from fewbits.kernels.ops import tensors  # needs torch

        return tensors.opened(x)
    array = np.asarray(x)
    own = array.dtype
    native = array.astype(own.newbyteorder("="), copy=False)
    return (native.view(BFLOAT16) if own.name == "bfloat16" else native), lambda y: _as(y, own)


def _as(y: NDArray[Any], own: np.dtype[Any]) -> NDArray[Any]:
    return y.view(own) if own.name == "bfloat16" else y.astype(own, copy=False)


def widened(x: AnyArray) -> NDArray[Any]:
    """Return ``x`` as a float32 or float64 NumPy array.

    Raises:
        DTypeError: x is neither a tensor nor an array of floating-point numbers.
    """
    return reals.widened(opened(x)[0])


def checked_out(out: Any, x: Any, *read: NDArray[Any]) -> NDArray[Any]:
    """Return ``out`` as an array for a result like ``x``, computed from the arrays that are ``read``.

    Raises:
        ArgumentError: out differs from x in type, dtype or shape, is not contiguous or aligned, or overlaps
            what is read.
    """
    check_like(out, x)
    target, _ = opened(out)
    is_swapped = not is_torch(out) and not out.dtype.isnative
    faults = {
        "is not in the byte order of this machine": is_swapped,  # and `target` is a copy
        "is not contiguous": not target.flags.c_contiguous,
        "is not aligned": not target.flags.aligned,
        "is read-only": not target.flags.writeable,
        "is a negated view": is_torch(out) and out.is_neg(),
    }
    fault = next((what for what, found in faults.items() if found), None)
    if fault is None and any(np.shares_memory(target, array) for array in read):
        fault = "overlaps what is read"
    if fault is not None:
        raise ArgumentError(f"out {fault}; give a separate, contiguous array that can be written, or none")
    return target


def check_like(out: Any, x: Any) -> None:
    """Raise ArgumentError unless ``out`` is like ``x`` in type, dtype, shape and device.

    Raises:
        ArgumentError: it is not.
    """
    alike = _kind(out) is _kind(x) and out.dtype == x.dtype and tuple(out.shape) == tuple(x.shape)
    if not alike or (is_torch(out) and out.device != x.device):
        where = f" on {x.device}" if is_torch(x) else ""
        raise ArgumentError(
            f"out is not like the result, a {type(x).__name__} of {getattr(x, 'dtype', None)} and shape "
            f"{tuple(x.shape)}{where}; give one of its family, dtype, shape and device, or leave it out"
        )


def _kind(x: Any) -> type:
    """Return the type of an array or tensor; what only says where memory comes from is ordinary."""
    if type(x) is np.memmap:
        return np.ndarray
    torch = sys.modules.get("torch")
    return torch.Tensor if torch is not None and type(x) is torch.nn.Parameter else type(x)


def overwrite(out: Any, y: Any) -> Any:
    """Copy the tensor ``y`` to ``out``, which is like it, on their device; return out."""
    return out.copy_(y)


def refuse_gradient(*given: Any) -> None:
    """Raise ArgumentError if torch would record a gradient through a call with ``out``.

    Raises:
        ArgumentError: gradients are being recorded, and a tensor requires one, or has a tangent.
    """
    torch = sys.modules.get("torch")
    tensors = [t for t in given if is_torch(t)]
    if not tensors or torch is None:
        return
    if torch.autograd.forward_ad._current_level >= 0:
        unpack = torch.autograd.forward_ad.unpack_dual
        if any(unpack(t).tangent is not None for t in tensors):
            raise ArgumentError(
                "out= was given with a tensor that has a tangent, which it cannot follow: omit out="
            )
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        raise ArgumentError(
            "out= was given with a tensor that requires a gradient, which it cannot record: omit out=, or"
            " call it under torch.no_grad()"
        )


@contextmanager
def changing(out: Any) -> Iterator[None]:
    """Tell autograd that ``out`` was overwritten, so that its old values are not used.

    That is so of a result that was refused, too.
    """
    try:
        yield
    except DataError:
        mark_changed(out)
        raise
    mark_changed(out)


def mark_changed(out: Any) -> None:
    """Tell autograd that a tensor was overwritten, and each part of one that is packed."""
    if is_torch(out):
        from fewbits.kernels.ops import tensors  # needs torch

        for changed in (out, *out.pieces) if is_narrow(out) else (out,):  # type: ignore[attr-defined]  # packed, it has them
            if changed is not None:
                tensors.mark_changed(changed)


def seed_of(generator: Any, rounding: str) -> int:
    """Return a 63-bit seed for stochastic rounding; a generator advances by one draw.

    Raises:
        ArgumentError: stochastic rounding has no valid generator, or another rounding has one.
    """
    if rounding != "stochastic":
        if generator is not None:
            raise ArgumentError(
                f"a generator with rounding={rounding!r}, which draws nothing; leave it out, or take"
                " rounding='stochastic'"
            )
        return 0
    if isinstance(generator, int | np.integer) and not isinstance(generator, bool) and 0 <= generator < 2**63:
        return int(generator)
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(2**63 - 1, dtype=np.int64))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(generator, torch.Generator):
        return int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
    raise ArgumentError(
        f"generator={generator!r}; rounding='stochastic' needs a seed from 0 to 2^63 - 1, "
        "a numpy.random.Generator or a torch.Generator, so that it can be repeated"
    )
