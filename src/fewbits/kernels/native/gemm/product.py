"""Products of dense matrices of bfloat16 values; native/kernels/gemm/product.hpp."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.kernels.bits.memory import empty_aligned
from fewbits.kernels.native.dispatch.isa import active_isa


def has_bfloat16_products() -> bool:
    """Return whether :func:`bfloat16_product` can run."""
    return active_isa() in ("avx512_bf16", "avx512") and _native.has_bfloat16_products()


def bfloat16_product(
    a: NDArray[np.float32], b: NDArray[np.float32], y: NDArray[np.float32], *, threads: int
) -> None:
    """Write ``a @ b`` into ``y``, summed in float32.

    Args:
        a: (m, k) in C order; every value is a bfloat16, and none is subnormal.
        b: (k, n), likewise.
        y: (m, n) in C order.
        threads: most threads to use.
    """
    of_a, of_b = _native.packed_sizes(a.shape[0], b.shape[1], a.shape[1])
    _native.bfloat16_product(
        a, b, y, empty_aligned((of_a,), np.uint32), empty_aligned((of_b,), np.uint32), threads
    )
