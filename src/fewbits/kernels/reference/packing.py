"""Codes to packed bits: a little-endian bit stream, the first code in the lowest bits of the first byte."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.reference.encode import code_dtype


def pack(codes: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Return ``ceil(count * bits / 8)`` bytes with the codes in C order; spare bits at the end are zero."""
    width = code_dtype(bits).itemsize * 8
    flat = np.ascontiguousarray(codes, dtype=code_dtype(bits).newbyteorder("<")).reshape(-1)
    if width == bits:
        return flat.view(np.uint8)
    stream = np.unpackbits(flat.view(np.uint8).reshape(-1, width // 8), axis=1, count=bits, bitorder="little")
    return np.packbits(stream.reshape(-1), bitorder="little")


def unpack(packed: NDArray[np.uint8], bits: int, shape: tuple[int, ...]) -> NDArray[np.unsignedinteger]:
    """Return the codes of :func:`pack` in an array of ``shape``."""
    dtype = code_dtype(bits)
    count = prod(shape)
    stream = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(count, bits)
    octets = np.zeros((count, dtype.itemsize), np.uint8)
    found = np.packbits(stream, axis=1, bitorder="little")
    octets[:, : found.shape[1]] = found
    return octets.view(dtype.newbyteorder("<")).astype(dtype).reshape(shape)
