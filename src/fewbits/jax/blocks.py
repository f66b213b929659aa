"""Blocks along the last axis: grouping, the largest of each, and repeating what each has."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def blocks_of(x: Array, size: int | str) -> Array:
    """Return ``x`` grouped as (..., blocks, size); zeros fill the last block."""
    if size == "tensor":
        return x.reshape((1,) * x.ndim + (x.size,))
    n = x.shape[-1]
    width = n if isinstance(size, str) else size
    count = 1 if isinstance(size, str) else -(-n // width)
    spare = [(0, 0)] * (x.ndim - 1) + [(0, count * width - n)]
    return jnp.pad(x, spare).reshape((*x.shape[:-1], count, width))


def spread(per_block: Array, size: int | str, n: int) -> Array:
    """Return ``per_block`` repeated so that it broadcasts against an array with ``n`` values in a line."""
    if isinstance(size, str):
        return per_block
    wide = jnp.broadcast_to(per_block[..., None], (*per_block.shape, size))
    return wide.reshape((*per_block.shape[:-1], per_block.shape[-1] * size))[..., :n]
