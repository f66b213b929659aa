"""Codes to packed bits and back.

Each line of codes along the last axis is a little-endian bit stream of its own: the first code lies in the
lowest bits of the first byte, and the spare bits of the last byte are zero. So a line can be found, and cut
off, alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.reference.encode import code_dtype


def line_bytes(count: Any, bits: int) -> Any:
    """Return the bytes of a line of ``count`` codes."""
    return (count * bits + 7) // 8


def pack(codes: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Return (..., n) codes as (..., ceil(n * bits / 8)) bytes."""
    *others, n = codes.shape
    width = code_dtype(bits).itemsize * 8
    whole = np.ascontiguousarray(codes, dtype=code_dtype(bits).newbyteorder("<"))
    if width == bits:
        return whole.view(np.uint8).reshape(*others, n * bits // 8)
    octets = whole.view(np.uint8).reshape(-1, width // 8)
    stream = np.unpackbits(octets, axis=1, count=bits, bitorder="little").reshape(*others, n * bits)
    return np.packbits(stream, axis=-1, bitorder="little")


def unpack(packed: NDArray[np.uint8], bits: int, count: int) -> NDArray[np.unsignedinteger]:
    """Return the (..., count) codes of :func:`pack`."""
    dtype = code_dtype(bits)
    others = packed.shape[:-1]
    stream = np.unpackbits(packed, axis=-1, count=count * bits, bitorder="little").reshape(
        *others, count, bits
    )
    octets = np.zeros((*others, count, dtype.itemsize), np.uint8)
    found = np.packbits(stream, axis=-1, bitorder="little")
    octets[..., : found.shape[-1]] = found
    return octets.view(dtype.newbyteorder("<")).astype(dtype).reshape(*others, count)
