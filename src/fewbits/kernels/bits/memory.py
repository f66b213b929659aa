"""Memory aligned to cache lines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CACHE_LINE = 64  # bytes


def empty_aligned(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an uninitialized array aligned to a cache line.

    NumPy's own large arrays start 16 bytes after the start of a cache line, so that every wide store would
    cross a line.
    """
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    octets = np.empty(size + _CACHE_LINE, np.uint8)
    start = -octets.ctypes.data % _CACHE_LINE
    aligned: NDArray[Any] = octets[start : start + size].view(dtype).reshape(shape)
    return aligned
