"""The places of the largest magnitudes of an array, by the compiled kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.kernels.native.dispatch.isa import active_isa
from fewbits.kernels.native.jobs.geometry import aligned

MOST_RANKED = 2**31 - 1  # most_ranked of native/jobs/top_k.hpp


def top_k(x: NDArray[Any], places: NDArray[np.int64], *, threads: int) -> None:
    """Write the places of the largest magnitudes of ``x`` into ``places`` in rising order, as many as fit.

    Args:
        x: (n,), float32, float16, or uint16 that are the bits of bfloat16; at most MOST_RANKED.
        places: (k,), k up to n.
        threads: most threads to use; small arrays use one.
    """
    active_isa()
    _native.top_k(aligned(np.ascontiguousarray(x)), places, threads)
