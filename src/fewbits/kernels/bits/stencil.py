"""Storage of a 7-point stencil and its vectors: 64, 32 or 16 bits, the last with scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.bits.memory import empty_aligned

SITE = 32  # 16-bit integers that share a norm
LARGEST_INTEGER, LARGEST_HALF = np.float32(32767), np.float32(65504)
SMALLEST_NORM = np.float32(2.0**-100)  # a block of smaller numbers is zero
TYPES: dict[str, Any] = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "i16": np.int16}


@dataclass
class ScaledArray:
    """Rows of numbers, each a value of few bits times a scale.

    Attributes:
        storage: a key of :data:`TYPES`.
        values: (..., stride), stride a multiple of :data:`SITE`.
        norms: (..., stride / SITE) float32 for ``i16``, else None.
        scale: ``f16``: a power of two; every number is a value times it.
    """

    storage: str
    values: NDArray[Any]
    norms: NDArray[np.float32] | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class Grid:
    """y = sum over the six faces of face * (x - x of the neighbour) + shift * x; x is zero outside.

    Attributes:
        nx: cells in a row; what lies beyond is zero.
        x, y, z: faces below each cell: (nz, ny, stride), (nz, ny + 1, stride), (nz + 1, ny, stride).
        high: (nz, ny) float64, the faces above the last cells in x.
        shift: added to the diagonal.
    """

    nx: int
    x: ScaledArray
    y: ScaledArray
    z: ScaledArray
    high: NDArray[np.float64]
    shift: float


def zeros(shape: tuple[int, ...], storage: str) -> ScaledArray:
    """Return zeros, (..., stride)."""
    values = empty_aligned(shape, TYPES[storage])
    values.fill(0)
    norms = None
    if storage == "i16":
        norms = empty_aligned((*shape[:-1], shape[-1] // SITE), np.float32)
        norms.fill(0)
    return ScaledArray(storage, values, norms)


def stride_of(n: int) -> int:
    """Return the length of a row that holds n numbers."""
    return (n + SITE - 1) // SITE * SITE


def load(s: ScaledArray) -> NDArray[Any]:
    """Return the numbers, float64 or float32."""
    if s.storage in ("f64", "f32"):
        return s.values.copy()
    if s.storage == "f16":
        return s.values.astype(np.float32) * np.float32(s.scale)
    assert s.norms is not None
    numbers = s.values.astype(np.float32).reshape(*s.norms.shape, SITE) * s.norms[..., None]
    return numbers.reshape(s.values.shape)


def store(s: ScaledArray, v: NDArray[Any]) -> NDArray[Any]:
    """Store ``v``, and return what :func:`load` then gives."""
    if s.storage in ("f64", "f32"):
        s.values[...] = v
    elif s.storage == "f16":
        over = np.float32(1) / np.float32(s.scale)
        s.values[...] = np.clip(v * over, -LARGEST_HALF, LARGEST_HALF)  # rounds to nearest even
    else:
        assert s.norms is not None
        blocks = v.reshape(*s.norms.shape, SITE)
        largest = np.abs(blocks).max(-1)
        there = largest >= SMALLEST_NORM
        safe = np.where(there, largest, np.float32(1))
        s.norms[...] = np.where(there, safe / LARGEST_INTEGER, np.float32(0))
        steps = np.where(there, LARGEST_INTEGER / safe, np.float32(0))
        s.values[...] = np.rint(blocks * steps[..., None]).reshape(v.shape)
    return load(s)
