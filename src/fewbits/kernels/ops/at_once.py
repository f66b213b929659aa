"""Calls on ordinary tensors straight into the compiled kernels: what a small tensor would else wait for.

Each function does what an operator does, to the same bits, and returns None for every call that is not as
plain as it says; the operator then takes it. Nothing here tells a user of a wrong argument: it is not plain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fewbits.formats import Format
from fewbits.kernels.arrays import conversions
from fewbits.kernels.arrays import lent as kernels
from fewbits.kernels.arrays.products import max_vectors
from fewbits.kernels.ops.backends import is_native
from fewbits.kernels.ops.direct import is_ordinary, is_recorded, is_recorded_forward
from fewbits.kernels.ops.memory import in_huge_pages
from fewbits.kernels.ops.tensors import DTYPES_OF_PARTS, REALS, array, mark_changed

Pieces = Sequence[torch.Tensor | None]

PLAIN = (torch.Tensor, torch.nn.Parameter)


def fake_quantize(
    x: torch.Tensor,
    format: str | Format,
    axis: int,
    choices: tuple[Any, ...],
    seed: Callable[[], int],
    out: Any = None,
) -> torch.Tensor | None:
    """Return ``x`` rounded as by the operator, recorded for backward mode if x requires a gradient.

    Args:
        x: any tensor; only ordinary ones on the CPU in C order are rounded here.
        format: a format, or its text.
        axis: along which blocks lie; may be negative.
        choices: the fields of :class:`fewbits.kernels.bits.options.Choices`.
        seed: called once where the call is plain, for the seed of what is drawn.
        out: what is overwritten with the result, if it is plain, like x and apart from it; None: new memory.

    Raises:
        DataError: x holds NaN or infinity, and the options refuse them.
    """
    source = _lent(x)
    if source is None or is_recorded_forward():
        return None
    planned = kernels.rounding(format, axis, x.shape, choices)
    if planned is None or (out is not None and not _takes(out, x, source)):
        return None
    y = in_huge_pages(torch.empty_like(x, memory_format=torch.contiguous_format)) if out is None else out
    nonfinite = kernels.fake_quantize(planned.plan, source, (y.data_ptr(), *source[1:]), seed(), None)
    if out is not None:
        mark_changed(out)
    if nonfinite:
        conversions.refuse(array(x), planned.format, planned.plan.nonfinite)
    if x.requires_grad and torch.is_grad_enabled():
        return _Rounded.record(x, y)
    return y


def _takes(out: Any, x: torch.Tensor, source: tuple[int, int, int]) -> bool:
    """Return whether ``out`` is plain memory for a result like ``x``, whose values lie at ``source``."""
    if type(out) not in PLAIN or out.shape != x.shape or out.dtype != x.dtype:
        return False
    if torch.is_grad_enabled() and (x.requires_grad or out.requires_grad):
        return False
    place = _lent(out)
    return place is not None and not _overlap(place[0], out.nbytes, source[0], x.nbytes)


def _among(x: torch.Tensor | np.ndarray[Any, Any], parts: Pieces) -> bool:
    """Return whether values in C order share memory with parts that are."""
    at = x.data_ptr() if isinstance(x, torch.Tensor) else x.ctypes.data
    return any(p is not None and _overlap(at, x.nbytes, p.data_ptr(), p.nbytes) for p in parts)


def _overlap(a: int, bytes_of_a: int, b: int, bytes_of_b: int) -> bool:
    """Return whether the bytes at two addresses have some in common."""
    return a < b + bytes_of_b and b < a + bytes_of_a


class _Rounded(torch.autograd.Function):
    """Values that were rounded already, as the result of what passes gradients straight through."""

    @classmethod
    def record(cls, x: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
        # Past torch's own apply, which looks for transforms of torch.func: there is none.
        recorded: torch.Tensor = super(torch.autograd.Function, cls).apply(x, (rounded,))  # type: ignore[misc]  # of an untyped base class
        return recorded

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rounded: tuple[torch.Tensor]) -> torch.Tensor:
        return rounded[0]  # from a tuple: torch returns an alias of what is a tensor among the arguments

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def quantize(
    x: torch.Tensor | np.ndarray[Any, Any],
    format: str | Format,
    axis: int,
    choices: tuple[Any, ...],
    seed: Callable[[], int],
    there: tuple[Format, int, Pieces] | None = None,
) -> tuple[kernels.Rounding, Pieces] | None:
    """Return how ``x`` was packed, and its codes, scales, shifts and outer scales; None for no such part.

    Arguments and errors are those of :func:`fake_quantize`, but x may be an array, and ``there`` is format,
    axis and parts of a tensor of x's shape: if they are those of the result, the parts are overwritten.
    """
    source: Any = _lent(x)
    if isinstance(x, np.ndarray):
        source = x if is_ordinary() and kernels.lends(x) else None
    planned = None if source is None else kernels.rounding(format, axis, x.shape, choices)
    if planned is None:
        return None
    parts: Pieces
    into: Any
    if there is None:
        parts = [
            None if shape is None else in_huge_pages(torch.empty(*shape, dtype=dtype))
            for shape, dtype in zip(planned.parts, DTYPES_OF_PARTS, strict=True)
        ]
        into = [None if part is None else (part.data_ptr(), part.numel()) for part in parts]
    else:
        parts, into = there[2], _lent_parts(there[2])
        if there[:2] != (planned.format, planned.axis) or into is None or _among(x, parts):
            return None
    if kernels.quantize(planned.plan, source, into, seed(), None):
        values = x if isinstance(x, np.ndarray) else array(x)
        conversions.refuse(values, planned.format, planned.plan.nonfinite)
    return planned, parts


def dequantize(
    parts: Pieces, format: Format, shape: tuple[int, ...], axis: int, dtype: torch.dtype, out: Any = None
) -> torch.Tensor | None:
    """Return the values of packed parts, as the operator does; in ``out``, if it is plain and fits."""
    real, source = REALS.get(dtype), _lent_parts(parts) if _is_native(parts) else None
    if real is None or source is None or not shape or 0 in shape:
        return None
    if out is not None:
        fits = type(out) in PLAIN and (out.dtype, out.shape) == (dtype, shape) and not is_recorded(out)
        if not fits or _lent(out) is None or _among(out, parts):
            return None
    y: torch.Tensor = in_huge_pages(torch.empty(*shape, dtype=dtype)) if out is None else out
    if not kernels.dequantize(source, (y.data_ptr(), y.numel(), real), format.grammar, shape, axis):
        return None
    if out is not None:
        mark_changed(out)
    return y


def gemv(
    x: torch.Tensor, parts: Pieces, format: Format, lines: int, n: int, activation: Format | None
) -> torch.Tensor | None:
    """Return ``x @ W.T`` in x's dtype for few vectors x, (..., n), if autograd records nothing; W is packed.

    Args:
        x: any tensor.
        parts: of W, (lines, n), with its blocks along n.
        format: of W.
        lines: of W.
        n: the length of each.
        activation: int8 with a float32 for each 32 values, to which x is rounded first; None for no rounding.
    """
    # First of all: other tensors have no shape, or no memory.
    if type(x) not in PLAIN or not _is_native(parts, x) or is_recorded(x):
        return None
    real = REALS.get(x.dtype)
    if real is None or not x.is_contiguous() or not x.numel() or not lines:
        return None
    *ahead, length = x.shape or (-1,)  # a single number is no vector, not even one of no values
    vectors, address, source = x.numel() // max(n, 1), x.data_ptr(), _lent_parts(parts)
    if length != n or source is None or address % 4 or (vectors > 1 and vectors > max_vectors(format)):
        return None
    y = in_huge_pages(torch.empty(*ahead, lines, dtype=x.dtype))
    rows, out = (address, x.numel(), real), (y.data_ptr(), y.numel(), real)
    return y if kernels.gemv(rows, vectors, source, out, format.grammar, None, activation) else None


def _lent(x: Any) -> tuple[int, int, int] | None:
    """Return the memory of a tensor whose kernel the dispatcher would only pass on to, in C order."""
    if type(x) not in PLAIN or not is_ordinary(x):
        return None
    real = REALS.get(x.dtype)
    if real is None or not is_native(x) or not x.is_contiguous():
        return None
    address = x.data_ptr()
    return None if address % 4 else (address, x.numel(), real)


def _is_native(parts: Pieces, *others: torch.Tensor) -> bool:
    """Return whether the dispatcher would only pass codes, and others, on to a compiled kernel."""
    codes = parts[0]
    return codes is not None and is_ordinary(codes, *others) and is_native(codes)


def _lent_parts(parts: Pieces) -> list[tuple[int, int] | None] | None:
    """Return the memory of parts on the CPU in C order, each at an address that fits its items."""
    lent: list[tuple[int, int] | None] = []
    for part in parts:
        if part is None:
            lent.append(None)
            continue
        if type(part) is not torch.Tensor or not part.is_cpu or not part.is_contiguous():
            return None
        address = part.data_ptr()
        if address % part.itemsize:  # where a file holds it: the operator copies it first
            return None
        lent.append((address, part.numel()))
    return lent
