"""Numbers on a grid as a solver keeps them: in 64, 32 or 16 bits, the last with scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.layout import empty_aligned

SITE = 32  # 16-bit integers that share a norm
TYPES: dict[str, Any] = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "i16": np.int16}


@dataclass
class Stored:
    """Rows of numbers.

    Attributes:
        storage: a key of :data:`TYPES`.
        values: (..., stride), stride a multiple of :data:`SITE`.
        norms: (..., stride / SITE) float32 for ``i16``, else None.
        scale: ``f16``: a power of two; every number is the stored one times it.
    """

    storage: str
    values: NDArray[Any]
    norms: NDArray[np.float32] | None = None
    scale: float = 1.0


def zeros(shape: tuple[int, ...], storage: str) -> Stored:
    """Return zeros, (..., stride)."""
    values = empty_aligned(shape, TYPES[storage])
    values.fill(0)
    norms = None
    if storage == "i16":
        norms = empty_aligned((*shape[:-1], shape[-1] // SITE), np.float32)
        norms.fill(0)
    return Stored(storage, values, norms)


def stride_of(n: int) -> int:
    """Return the length of a row that holds n numbers."""
    return (n + SITE - 1) // SITE * SITE
