"""Tensors as the arrays that :mod:`fewbits.kernels.arrays` takes; results lie in memory of torch's own.

Memory that NumPy allocated cannot be resized, nor any that ``Tensor.numpy`` was called for: what
fully_shard gathers, it resizes. Torch's memory begins a line of the cache, as that of
:func:`fewbits.kernels.bits.memory.empty_aligned` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewbits.errors import ArgumentError, DTypeError
from fewbits.formats import Format
from fewbits.kernels.bits.layout import Packed, layout
from fewbits.kernels.bits.reals import BFLOAT16
from fewbits.kernels.ops.memory import empty

Array = NDArray[Any]

NUMPY: dict[torch.dtype, np.dtype[Any]] = {
    torch.float64: np.dtype(np.float64),
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(BFLOAT16),
    torch.uint8: np.dtype(np.uint8),
}
REALS = {
    torch.float32: 0,
    torch.bfloat16: 1,
    torch.float16: 2,
}  # numbers of Real in native/jobs/conversion.hpp
DTYPES_OF_PARTS = (torch.uint8, torch.uint8, torch.uint8, torch.float32)


def opened(x: torch.Tensor) -> tuple[Array, Callable[[Array], torch.Tensor]]:
    """Return ``x`` as :mod:`fewbits.kernels` takes it, and what gives a result x's dtype and device.

    Raises:
        DTypeError: x is not floating point.
        ArgumentError: x is on another device, or has no memory, as those that torch.func passes around.
    """
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        raise ArgumentError(
            "a tensor inside of a transform of torch.func, which has no memory of its own: call fake_quantize"
            " without out, or this function outside"
        )
    own = values(x)

    def close(y: Array) -> torch.Tensor:
        found = empty(y.shape, own.dtype)
        array(found)[...] = y
        return found.to(x.device, x.dtype)

    return array(own), close


def values(x: torch.Tensor) -> torch.Tensor:
    """Return ``x``, on the CPU, without gradient, in a dtype that the kernels know.

    Raises:
        ArgumentError: x is on another device.
        DTypeError: x is not floating point.
    """
    if not x.is_floating_point():
        raise DTypeError(f"a tensor of {x.dtype}; expected floating point: convert it with x.float()")
    own = on_cpu(x.detach())
    return own if own.dtype in NUMPY else own.float()  # torch's own narrow types


def on_cpu(x: torch.Tensor) -> torch.Tensor:
    """Return ``x``, which lies on the CPU.

    Raises:
        ArgumentError: it does not; only who calls decides that values move.
    """
    if not x.is_cpu:
        raise ArgumentError(
            f"a tensor on {x.device}; fewbits does this only on the CPU, and moves nothing unasked: move"
            " it with .cpu()"
        )
    return x


def array(x: torch.Tensor) -> Array:
    """Return a tensor on the CPU as an array that shares its memory for one call; bfloat16 as its bits."""
    x = on_cpu(x.detach()).resolve_neg()
    if not x.numel():
        return np.empty(tuple(x.shape), NUMPY[x.dtype])
    shared: Array = np.asarray(_Memory(x))
    return shared


class _Memory:
    """The memory of a tensor, as NumPy asks for it."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x  # lives as long as the array
        self.__array_interface__ = {
            "version": 3,
            "data": (x.data_ptr(), False),
            "shape": tuple(x.shape),
            "strides": tuple(step * x.element_size() for step in x.stride()),
            "typestr": NUMPY[x.dtype].str,
        }


def is_lent(x: torch.Tensor) -> bool:
    """Return whether :func:`lent` applies: values that kernels read, on the CPU, at addresses that fit."""
    return (
        x.dtype in REALS
        and x.is_cpu
        and not x.is_neg()
        and x.numel() > 0
        and x.data_ptr() % x.element_size() == 0
    )


def lent(x: torch.Tensor) -> tuple[int, int, int]:
    """Return where the values of a tensor lie, how many there are, and what they are, as kernels take it."""
    return x.data_ptr(), x.numel(), REALS[x.dtype]


def are_lent(parts: Iterable[torch.Tensor | None]) -> bool:
    """Return whether :func:`lent_parts` applies."""
    return all(
        part is None or (part.is_cpu and part.is_contiguous() and part.data_ptr() % part.element_size() == 0)
        for part in parts
    )


def lent_parts(parts: Iterable[torch.Tensor | None]) -> list[tuple[int, int] | None]:
    """Return where parts on the CPU in C order lie, and how many items they have, as kernels take it."""
    return [None if part is None else (part.data_ptr(), part.numel()) for part in parts]


def mark_changed(x: torch.Tensor) -> None:
    """Tell autograd that a tensor was overwritten; of what inference mode made it counts nothing."""
    if not x.is_inference():
        torch.autograd.graph.increment_version(x)


def packed(parts: Iterable[torch.Tensor | None]) -> Packed:
    """Return parts as :mod:`fewbits.kernels` takes them; on the CPU they share their memory."""
    arrays: list[Any] = [None if part is None else array(part) for part in parts]
    return Packed(*arrays)


def empty_parts(format: Format, shape: tuple[int, ...], axis: int) -> tuple[torch.Tensor | None, ...]:
    """Return codes, scales, shifts and outer scales that nothing was written to yet."""
    shapes = layout(format, shape, axis)
    return tuple(None if s is None else empty(s, d) for s, d in zip(shapes, DTYPES_OF_PARTS, strict=True))
