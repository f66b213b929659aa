"""Creation of NarrowTensors from arrays and tensors, and checks of NarrowTensors given as ``out``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard, cast

import numpy as np
import torch

from fewbits.errors import ArgumentError, DataError, DTypeError
from fewbits.formats import Format
from fewbits.formats.pattern import Pattern, pattern
from fewbits.kernels import ops
from fewbits.kernels.arrays import nm
from fewbits.kernels.bits.layout import Packed
from fewbits.kernels.bits.options import Choices
from fewbits.kernels.ops import at_once, tensors
from fewbits.kernels.ops.sharding import is_sharded
from fewbits.tensor.arrays import mark_changed, opened
from fewbits.tensor.narrow.tensor import NarrowTensor, without_derivatives
from fewbits.typing import AnyArray

_TORCH = {numpy: dtype for dtype, numpy in tensors.NUMPY.items()}


def quantized(
    x: torch.Tensor, format: Format, axis: int, choices: Choices, seed: int, amax: float | None
) -> NarrowTensor:
    """Return the ordinary tensor ``x`` packed along ``axis``, a non-negative index."""
    parts = map(without_derivatives, ops.quantize(x.detach(), format, axis, choices, seed, amax))
    pieces = tuple(None if group is None else next(parts) for group in format.groups)
    return NarrowTensor(pieces, format, x.shape, axis, x.dtype)


def refuse_sharded(x: torch.Tensor) -> None:
    """Raise DTypeError for a DTensor."""
    if is_sharded(x):
        raise DTypeError(
            "a DTensor; expected the values of one process: quantize x.to_local(), with amax= of the whole"
            " where the format has a scale for it, or x.full_tensor()"
        )


def check_sparsity(sparsity: str | Pattern, format: Format, x: AnyArray, axis: int) -> None:
    """Raise FormatError or ArgumentError where ``x`` cannot be stored by a pattern along ``axis``."""
    kept = pattern(sparsity)
    shape = tuple(getattr(x, "shape", ()))
    nm.check_length(shape[axis] if shape else 1, kept, f"an array of shape {shape}")
    nm.zeros(format)


def quantized_at_once(
    x: Any, format: str | Format, axis: int, choices: Choices, seed: Callable[[], int], out: Any
) -> NarrowTensor | None:
    """Return ``x`` packed by what an earlier call like this one found out; None where that is not enough.

    ``seed`` is called once, if there is a result. ``out`` is a NarrowTensor that is overwritten with it; None
    for a new one.
    """
    there = None
    if out is not None:
        if torch.compiler.is_compiling() or not _is_like(out, x) or out._shares_its_scale:
            return None
        there = (out.format, out.axis, out.pieces)
    try:
        found = at_once.quantize(x, format, axis, choices, seed, there)
    except DataError:
        mark_changed(out)
        raise
    if found is None:
        return None
    if out is not None:
        mark_changed(out)
        return cast(NarrowTensor, out)
    how, parts = found
    if isinstance(x, np.ndarray):
        return NarrowTensor(tuple(parts), how.format, x.shape, how.axis, _TORCH[x.dtype], x.dtype)
    return NarrowTensor(tuple(parts), how.format, x.shape, how.axis, x.dtype)


def dequantized_at_once(q: NarrowTensor, out: Any) -> bool:
    """Write the values of ``q`` to ``out`` where no check of them takes longer than that; return whether."""
    if q.sparsity is not None or q._family is not None or torch.compiler.is_compiling():
        return False
    return at_once.dequantize(q.pieces, q.format, tuple(q.shape), q.axis, q.dtype, out) is not None


def empty(format: Format, shape: tuple[int, ...], axis: int, dtype: np.dtype[Any]) -> NarrowTensor:
    """Return an uninitialized NarrowTensor whose ``dequantize`` returns a NumPy array of ``dtype``."""
    parts = tensors.empty_parts(format, shape, axis)
    return NarrowTensor(parts, format, shape, axis, getattr(torch, dtype.name), dtype)


def arrays(q: NarrowTensor) -> Packed:
    """Return the parts of a tensor on the CPU as arrays that share their memory."""
    return tensors.packed(q.pieces)


def values_like(q: NarrowTensor) -> AnyArray:
    """Return an array or tensor like ``q.dequantize()``, without memory for its values."""
    if q._family is not None:
        return np.broadcast_to(np.zeros((), q._family), tuple(q.shape))
    return torch.empty((), dtype=q.dtype, device=q.device).expand(q.shape)


def check_out(out: Any, x: Any, format: Format, axis: int) -> None:
    """Raise ArgumentError unless the parts of ``out`` can be overwritten with the result for ``x``.

    Raises:
        ArgumentError: out is not a NarrowTensor of that format, shape, axis and dtype, its parts are not
            contiguous, not where x is or not apart from it, or it shares a scale with values that would keep
            their codes.
    """
    if not _is_like(out, x) or (out.format, out.axis) != (format, axis):
        named = (
            repr(out) if isinstance(out, NarrowTensor) else f"a {type(out).__name__}"
        )  # without its values
        raise ArgumentError(
            f"out is {named}; expected a NarrowTensor as an earlier call returned it for {format}, shape "
            f"{tuple(x.shape)}, axis={axis} and {x.dtype}, or leave it out"
        )
    given = [p for p in out.pieces if p is not None]
    where = x.device if isinstance(x, torch.Tensor) else torch.device("cpu")
    if not all(p.is_contiguous() and p.device == where for p in given):
        raise ArgumentError(f"the parts of out, {out!r}, are not contiguous or not on {where}; leave it out")
    if where.type == "cpu" and any(np.shares_memory(opened(x)[0], tensors.array(p)) for p in given):
        raise ArgumentError("out overlaps what is read; give a separate NarrowTensor, or leave it out")
    if out._shares_its_scale:
        raise ArgumentError(
            f"out is a piece of a {format} tensor and shares a scale with values beside it: give all of it, "
            "or leave it out"
        )


def _is_like(out: Any, x: Any) -> TypeGuard[NarrowTensor]:
    """Return whether ``out`` is a dense NarrowTensor of the shape and dtype of an array or tensor."""
    return (
        isinstance(out, NarrowTensor)
        and out.sparsity is None
        and isinstance(x, torch.Tensor | np.ndarray)
        and tuple(out.shape) == tuple(x.shape)
        and (out.dtype if out._family is None else out._family) == x.dtype
    )


def overwrite(out: NarrowTensor, q: NarrowTensor) -> None:
    """Copy the parts of ``q`` to those of ``out``, which is like it."""
    for old, new in zip(out.pieces, q.pieces, strict=True):
        if old is not None and new is not None:
            old.copy_(new)
