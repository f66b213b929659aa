"""How a narrow array lies in memory: the shape of each of its packed parts."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewbits.formats import Bdr, Block, Element, Format
from fewbits.formats.pattern import Pattern
from fewbits.kernels.reference import Parts, line_bytes, pack, unpack
from fewbits.kernels.reference.sparse_stream import stream_bytes

Bytes = NDArray[np.uint8]
Array = NDArray[Any]
_LINE = 64  # bytes of the cache


class Packed(NamedTuple):
    """The packed parts of an array of shape (..., n) with the block axis last; docs/layout.md.

    Each part but the outer scale is bytes, and every line along the block axis starts a byte of its own.
    """

    codes: Bytes  # (..., bytes)
    scales: Bytes | None = None  # (..., bytes); (1, ..., bytes) where one scale serves the whole tensor
    shifts: Bytes | None = None  # (..., bytes), the microexponents of BDR
    outer: NDArray[np.float32] | None = None  # (..., 1), or (1, ..., 1) for the whole tensor


def moved(shape: tuple[Any, ...], axis: int) -> tuple[Any, ...]:
    """Return ``shape`` with the block axis last; a scalar is a line of one value."""
    return (*shape[:axis], *shape[axis + 1 :], shape[axis]) if shape else (1,)


def groups(shape: tuple[Any, ...], size: int | str) -> tuple[Any, ...]:
    """Return the shape of one thing for each ``size`` values along the last axis of ``shape``."""
    if size == "tensor":
        return (1,) * len(shape)
    return (*shape[:-1], 1 if isinstance(size, str) else -(-shape[-1] // size))


def layout(
    fmt: Format, shape: tuple[Any, ...], axis: int, sparsity: Pattern | None = None
) -> tuple[tuple[Any, ...] | None, ...]:
    """Return the shapes of codes, scales, shifts and outer scales; None for a part that the format lacks.

    With ``sparsity`` the codes are streams, kernels/reference/sparse_stream.py.
    """
    lines = moved(shape, axis)
    if isinstance(fmt, Element):
        return (_codes(lines, fmt.bits, sparsity), None, None, None)
    assert isinstance(fmt, Block | Bdr)
    shifts = outer = None
    if isinstance(fmt, Bdr) and fmt.d2:
        shifts = _in_bytes(groups(lines, fmt.k2), fmt.d2)
    if isinstance(fmt, Block) and fmt.outer_size:
        outer = groups(lines, fmt.outer_size)
    return (
        _codes(lines, fmt.element.bits, sparsity),
        _in_bytes(groups(lines, fmt.size), fmt.scale.bits),
        shifts,
        outer,
    )


def empty_aligned(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return a new array that nothing was written to yet, and that begins a line of the cache.

    NumPy's own large arrays begin 16 bytes after one, where every wide store would cross into the next.
    """
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    octets = np.empty(size + _LINE, np.uint8)
    start = -octets.ctypes.data % _LINE
    found: Array = octets[start : start + size].view(dtype).reshape(shape)
    return found


def empty(fmt: Format, shape: tuple[int, ...], axis: int) -> Packed:
    """Return parts for an array of ``shape`` that nothing was written to yet."""
    dtypes = (np.uint8, np.uint8, np.uint8, np.float32)
    shapes = layout(fmt, shape, axis)
    return Packed(*(None if s is None else empty_aligned(s, d) for s, d in zip(shapes, dtypes, strict=True)))  # type: ignore[arg-type]


def packed(parts: Parts, fmt: Any) -> Packed:
    """Pack codes and scales, one integer each, into bits."""
    if isinstance(fmt, Element):
        return Packed(pack(parts.codes, fmt.bits))
    assert parts.scales is not None
    shifts = None if parts.shifts is None else pack(parts.shifts, fmt.d2)
    return Packed(
        pack(parts.codes, fmt.element.bits), pack(parts.scales, fmt.scale.bits), shifts, parts.outer
    )


def unpacked(whole: Packed, fmt: Any, shape: tuple[int, ...], axis: int) -> Parts:
    """Return codes and scales, one integer each, the block axis last."""
    lines = moved(shape, axis)
    if isinstance(fmt, Element):
        return Parts(unpack(whole.codes, fmt.bits, lines[-1]))
    assert whole.scales is not None
    scales = unpack(whole.scales, fmt.scale.bits, groups(lines, fmt.size)[-1])
    shifts = None if whole.shifts is None else unpack(whole.shifts, fmt.d2, groups(lines, fmt.k2)[-1])
    return Parts(unpack(whole.codes, fmt.element.bits, lines[-1]), scales, shifts, whole.outer)


def _codes(lines: tuple[Any, ...], bits: int, sparsity: Pattern | None) -> tuple[Any, ...]:
    return (
        _in_bytes(lines, bits) if sparsity is None else (*lines[:-1], stream_bytes(lines[-1], bits, sparsity))
    )


def _in_bytes(shape: tuple[Any, ...], bits: int) -> tuple[Any, ...]:
    return (*shape[:-1], line_bytes(shape[-1], bits))
