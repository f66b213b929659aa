"""Blocks along the last axis: the largest of each, and repeating what each has."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def largest_of(x: Array, size: int | str) -> Array:
    """Return the largest integer of each block, (..., blocks), at least 0; a last block may be partial."""
    if size == "tensor":
        return x.max(initial=0).reshape((1,) * x.ndim)
    if isinstance(size, str):
        return x.max(axis=-1, keepdims=True, initial=0)
    n = x.shape[-1]
    count = -(-n // size)
    filled = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, count * size - n)])
    return filled.reshape((*x.shape[:-1], count, size)).max(axis=-1, initial=0)


def spread(per_block: Array, size: int | str, n: int) -> Array:
    """Return ``per_block`` repeated so that it broadcasts against an array with ``n`` values in a line."""
    if isinstance(size, str):
        return per_block
    wide = jnp.broadcast_to(per_block[..., None], (*per_block.shape, size))
    return wide.reshape((*per_block.shape[:-1], per_block.shape[-1] * size))[..., :n]
