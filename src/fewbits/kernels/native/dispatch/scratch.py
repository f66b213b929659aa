"""Memory that is kept in the process from one user to the next."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits import _native


def empty_kept(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an uninitialized array aligned to a cache line, whose memory waits for the next such array.

    New pages take as long as a tenth of a dense solution, and more after a library that gave its own back.
    """
    dtype = np.dtype(dtype)
    octets = _native.scratch(math.prod(shape) * dtype.itemsize)
    kept: NDArray[Any] = octets.view(dtype).reshape(shape)
    return kept
