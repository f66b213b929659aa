"""Codes to packed bits and back.

Each line of codes along the last axis is a little-endian bit string of its own: the first code lies in the
lowest bits of the first byte, and the spare bits of the last byte are zero. So every line starts on a byte
and can be read without the lines before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def code_dtype(bits: int) -> np.dtype[np.unsignedinteger]:
    """Return the smallest unsigned integer type that holds ``bits`` bits."""
    return np.dtype(np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32)


def line_bytes(count: Any, bits: int) -> Any:
    """Return the bytes of a line of ``count`` codes."""
    return (count * bits + 7) // 8


def pack(codes: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Return (..., n) codes as (..., ceil(n * bits / 8)) bytes."""
    *others, n = codes.shape
    width = code_dtype(bits).itemsize * 8
    wide = np.ascontiguousarray(codes, dtype=code_dtype(bits).newbyteorder("<"))
    if width == bits:
        return wide.view(np.uint8).reshape(*others, n * bits // 8)
    octets = wide.view(np.uint8).reshape(-1, width // 8)
    single_bits = np.unpackbits(octets, axis=1, count=bits, bitorder="little").reshape(*others, n * bits)
    return np.packbits(single_bits, axis=-1, bitorder="little")


def unpack(packed: NDArray[np.uint8], bits: int, count: int) -> NDArray[np.unsignedinteger]:
    """Return the (..., count) codes of :func:`pack`."""
    dtype = code_dtype(bits)
    others = packed.shape[:-1]
    single_bits = np.unpackbits(packed, axis=-1, count=count * bits, bitorder="little")
    low_octets = np.packbits(single_bits.reshape(*others, count, bits), axis=-1, bitorder="little")
    octets = np.zeros((*others, count, dtype.itemsize), np.uint8)
    octets[..., : low_octets.shape[-1]] = low_octets
    return octets.view(dtype.newbyteorder("<")).astype(dtype).reshape(*others, count)
