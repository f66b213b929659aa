"""Blocks along the last axis: grouping, the largest magnitude of each, and repeating what each has."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def blocks_of(values: Array, size: int | str) -> Array:
    """Return ``values`` grouped as (..., blocks, size); zeros fill the last block and change no maximum."""
    if size == "tensor":
        return values.reshape((1,) * values.ndim + (-1,)) if values.ndim else values.reshape(1, -1)
    n = values.shape[-1]
    width = n if isinstance(size, str) else size
    count = 1 if isinstance(size, str) else -(-n // width)
    padded = np.zeros((*values.shape[:-1], count * width), values.dtype)
    padded[..., :n] = values
    return padded.reshape(*values.shape[:-1], count, width)


def spread(per_block: Array, size: int | str, shape: tuple[int, ...]) -> Array:
    """Return ``per_block`` repeated so that it broadcasts against ``shape``."""
    if isinstance(size, str):
        return per_block
    return np.repeat(per_block, size, axis=-1)[..., : shape[-1]]


def largest_of(x: Array, size: int | str) -> Array:
    """Return the largest finite magnitude of each block, (..., blocks)."""
    magnitude = np.abs(np.where(np.isfinite(x), x, x.dtype.type(0)))
    return np.asarray(blocks_of(magnitude, size).max(axis=-1, initial=0))
