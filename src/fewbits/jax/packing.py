"""Codes to packed bits and back, the bytes of :mod:`fewbits.kernels.bits.packing`."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from fewbits.kernels.bits.packing import line_bytes

_U32 = np.uint32


def pack(codes: Array, bits: int) -> Array:
    """Return (..., n) codes below 2^bits as (..., ceil(n * bits / 8)) bytes."""
    *others, n = codes.shape
    if bits == 8:
        return codes.astype(jnp.uint8)
    if bits % 8 == 0:
        return _parts(codes, 8, bits // 8).astype(jnp.uint8).reshape((*others, n * bits // 8))
    single = _parts(codes, 1, bits).reshape((*others, n * bits))
    octets = line_bytes(n * bits, 1)
    filled = jnp.pad(single, [(0, 0)] * len(others) + [(0, octets * 8 - n * bits)])
    return _joined(filled.reshape((*others, octets, 8)), 1).astype(jnp.uint8)


def unpack(packed: Array, bits: int, count: int) -> Array:
    """Return the (..., count) codes of :func:`pack`, uint32."""
    others = packed.shape[:-1]
    if bits % 8 == 0:
        return _joined(packed.reshape((*others, count, bits // 8)), 8)
    single = _parts(packed, 1, 8).reshape((*others, packed.shape[-1] * 8))[..., : count * bits]
    return _joined(single.reshape((*others, count, bits)), 1)


def _parts(x: Array, width: int, count: int) -> Array:
    """Return ``count`` pieces of ``width`` bits of each integer, the lowest first, as a last axis."""
    return (x.astype(jnp.uint32)[..., None] >> _places(width, count, x.ndim)) & _U32((1 << width) - 1)


def _joined(pieces: Array, width: int) -> Array:
    places = _places(width, pieces.shape[-1], pieces.ndim - 1)
    return (pieces.astype(jnp.uint32) << places).sum(-1, dtype=jnp.uint32)


def _places(width: int, count: int, others: int) -> Array:
    """Return the lowest bit of each piece, behind so many axes: JAX may be set to allow no fewer."""
    return (jnp.arange(count, dtype=jnp.uint32) * _U32(width)).reshape((1,) * others + (count,))
