"""Products of matrices whose values are small integers times a power of two for each block.

Within a block the sum of products is a small integer times a power of two: exact in every order. What is
rounded is its addition to the sums of the blocks before it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def product(a: NDArray[np.float32], b: NDArray[np.float32], block: int) -> NDArray[np.float32]:
    """Return ``a @ b``: the exact sum of each block of k, added to a float32 from the first to the last.

    With u = 2^-24 and c blocks the error is at most (c - 1) u / (1 - c u) times ``|a| @ |b|``.

    Args:
        a: (m, k). In each block of values of a row, all are multiples of 2^-8 times the largest power of two
            that is not above the largest magnitude of the block: integers of nine bits, or fewer.
        b: (k, n), likewise along its columns.
        block: values that share a power of two; the last block may be shorter.
    """
    y = np.zeros((a.shape[0], b.shape[1]), np.float32)
    with np.errstate(invalid="ignore"):  # a NaN makes its row or column NaN
        for start in range(0, a.shape[1], block):
            of_a, of_b = a[:, start : start + block], b[start : start + block]
            y += (of_a.astype(np.float64) @ of_b.astype(np.float64)).astype(np.float32)
    return y
