"""Memory layout of a narrow array: the shape of each of its packed parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewbits.formats import Format, Group
from fewbits.formats.pattern import Pattern
from fewbits.kernels.bits.memory import empty_aligned
from fewbits.kernels.bits.nm_stream import stream_bytes
from fewbits.kernels.bits.packing import line_bytes, pack, unpack

Bytes = NDArray[np.uint8]
Array = NDArray[Any]


@dataclass(frozen=True)
class Parts:
    """The codes of an array and of its scales, unpacked: one unsigned integer each."""

    codes: Array  # (..., n)
    scales: Array | None = None  # (..., ceil(n / size)); (..., 1) per channel; (1, ..., 1) per tensor
    shifts: Array | None = None  # BDR microexponents, (..., ceil(n / k2)); None where d2 = 0
    outer: Array | None = None  # float32 outer scales, (..., 1) per channel or (1, ..., 1) per tensor


class Packed(NamedTuple):
    """The packed parts of an array of shape (..., n) with the block axis last; docs/layout.md.

    Each part except the outer scale is bytes, and every line along the block axis starts on a byte.
    """

    codes: Bytes  # (..., bytes)
    scales: Bytes | None = None  # (..., bytes); (1, ..., bytes) where one scale serves the whole tensor
    shifts: Bytes | None = None  # (..., bytes), the microexponents of BDR
    outer: NDArray[np.float32] | None = None  # (..., 1), or (1, ..., 1) for the whole tensor


def moved(shape: tuple[Any, ...], axis: int) -> tuple[Any, ...]:
    """Return ``shape`` with the block axis last; a scalar is a line of one value."""
    return (*shape[:axis], *shape[axis + 1 :], shape[axis]) if shape else (1,)


def groups(shape: tuple[Any, ...], size: int | str) -> tuple[Any, ...]:
    """Return the shape of an array with one item per ``size`` values along the last axis of ``shape``."""
    if size == "tensor":
        return (1,) * len(shape)
    return (*shape[:-1], 1 if isinstance(size, str) else -(-shape[-1] // size))


def layout(
    format: Format, shape: tuple[Any, ...], axis: int, sparsity: Pattern | None = None
) -> tuple[tuple[Any, ...] | None, ...]:
    """Return the shapes of codes, scales, shifts and outer scales; None for a part that the format lacks.

    With ``sparsity`` the codes are streams, docs/sparse_storage.md.
    """
    lines = moved(shape, axis)
    codes, scales, shifts, outer = format.groups
    return (
        _codes(lines, codes.bits, sparsity),
        None if scales is None else _in_bytes(groups(lines, scales.size), scales.bits),
        None if shifts is None else _in_bytes(groups(lines, shifts.size), shifts.bits),
        None if outer is None else groups(lines, outer.size),
    )


def empty(format: Format, shape: tuple[int, ...], axis: int) -> Packed:
    """Return uninitialized parts for an array of ``shape``."""
    dtypes = (np.uint8, np.uint8, np.uint8, np.float32)
    shapes = layout(format, shape, axis)
    return Packed(
        *(None if s is None else empty_aligned(s, d) for s, d in zip(shapes, dtypes, strict=True))  # type: ignore[arg-type]  # four parts, each of its own dtype
    )


def packed(parts: Parts, format: Format) -> Packed:
    """Pack codes and scales, one integer each, into bits."""
    codes, scales, shifts, _ = format.groups
    return Packed(
        pack(parts.codes, codes.bits),
        None if parts.scales is None or scales is None else pack(parts.scales, scales.bits),
        None if parts.shifts is None or shifts is None else pack(parts.shifts, shifts.bits),
        parts.outer,
    )


def unpacked(q: Packed, format: Format, shape: tuple[int, ...], axis: int) -> Parts:
    """Return codes and scales, one integer each, the block axis last."""
    lines = moved(shape, axis)

    def numbers(part: Bytes | None, group: Group | None) -> Array | None:
        if part is None or group is None:
            return None
        return unpack(part, group.bits, groups(lines, group.size)[-1])

    codes, scales, shifts, _ = format.groups
    return Parts(
        unpack(q.codes, codes.bits, lines[-1]), numbers(q.scales, scales), numbers(q.shifts, shifts), q.outer
    )


def _codes(lines: tuple[Any, ...], bits: int, sparsity: Pattern | None) -> tuple[Any, ...]:
    return (
        _in_bytes(lines, bits) if sparsity is None else (*lines[:-1], stream_bytes(lines[-1], bits, sparsity))
    )


def _in_bytes(shape: tuple[Any, ...], bits: int) -> tuple[Any, ...]:
    return (*shape[:-1], line_bytes(shape[-1], bits))
