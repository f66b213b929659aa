"""Products of dense matrices by sums of bit patterns; kernels/reference/gemm/additions.py defines them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.kernels.native.dispatch.isa import active_isa


def addition_product(
    a: NDArray[np.float32], b: NDArray[np.float32], y: NDArray[np.float32], *, threads: int
) -> None:
    """Write ``a @ b`` into ``y``, each product one sum of bit patterns.

    Args:
        a: (m, k) in C order.
        b: (k, n), likewise.
        y: (m, n), likewise.
        threads: most threads to use.
    """
    active_isa()
    _native.addition_product(a, b, y, threads)
