"""Memory that begins a line of the cache."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CACHE_LINE = 64  # bytes


def empty_aligned(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return a new array that nothing was written to yet, and that begins a line of the cache.

    NumPy's own large arrays begin 16 bytes after one, where every wide store would cross into the next.
    """
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    octets = np.empty(size + _CACHE_LINE, np.uint8)
    start = -octets.ctypes.data % _CACHE_LINE
    aligned: NDArray[Any] = octets[start : start + size].view(dtype).reshape(shape)
    return aligned
