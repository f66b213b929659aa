"""Arrays in, arrays of the same family out: torch.Tensor and numpy.ndarray, seen as float32 or float64 NumPy arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.errors import ArgumentError, DTypeError

Array = NDArray[Any]
NUMPY_NARROW = ("float16", "bfloat16")


def is_torch(x: object) -> bool:
    """Whether ``x`` is a torch.Tensor, without importing torch for those who do not use it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def opened(x: Any) -> tuple[Array, Callable[[Array], Any]]:
    """Return ``x`` as float32 or float64, and the function that gives a result x's own family and dtype.

    Raises:
        DTypeError: x is neither a tensor nor an array of floating-point numbers.
    """
    if is_torch(x):
        import torch

        if not x.is_floating_point():
            raise DTypeError(f"a tensor of {x.dtype}; expected floating point: convert it with x.float()")
        wide = x.detach() if x.dtype == torch.float64 else x.detach().float()
        device, dtype = x.device, x.dtype
        return wide.cpu().numpy(), lambda y: torch.from_numpy(np.ascontiguousarray(y)).to(device, dtype)
    if not isinstance(x, np.ndarray | np.floating | float):
        raise DTypeError(f"{type(x).__name__}; expected a numpy.ndarray or a torch.Tensor of floating-point numbers")
    array = np.asarray(x)
    if array.dtype.kind != "f" and array.dtype.name not in NUMPY_NARROW or array.dtype.itemsize > 8:
        raise DTypeError(
            f"an array of {array.dtype}; expected float16, bfloat16, float32 or float64: convert it with x.astype('float32')"
        )
    own = array.dtype
    wide_array = array if own in (np.float32, np.float64) else array.astype(np.float32)
    return wide_array, lambda y: y.astype(own, copy=False)


def checked_axis(axis: int, ndim: int) -> int:
    """Return ``axis`` counted from the front.

    Raises:
        ArgumentError: the array has no such axis.
    """
    if isinstance(axis, bool) or not isinstance(axis, int | np.integer):
        raise ArgumentError(f"axis={axis!r} is not an integer")
    if not -max(ndim, 1) <= axis < max(ndim, 1):
        raise ArgumentError(f"axis={axis} is out of range for an array of {ndim} dimensions; use {-ndim} to {ndim - 1}")
    return int(axis) % max(ndim, 1)


def seed_of(generator: Any, rounding: str) -> int:
    """Return the 63-bit seed that stochastic rounding draws from; a generator advances by one draw.

    Raises:
        ArgumentError: stochastic rounding without a generator, or something that is none.
    """
    if rounding != "stochastic":
        return 0
    if isinstance(generator, int) and not isinstance(generator, bool) and 0 <= generator < 2**63:
        return generator
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(2**63 - 1, dtype=np.int64))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(generator, torch.Generator):
        return int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
    raise ArgumentError(
        f"generator={generator!r}; rounding='stochastic' needs a seed from 0 to 2^63 - 1, a numpy.random.Generator "
        "or a torch.Generator, so that it can be repeated"
    )
