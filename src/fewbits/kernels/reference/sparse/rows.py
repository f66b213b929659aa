"""The product of compressed rows: the definition."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.bits.sparse_rows import SLICE, SparseRows


def multiply(a: SparseRows, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return A x in float32; rows are summed in the order of their entries, every operation rounded."""
    y = np.zeros(a.rows, np.float32)
    for s in range(len(a.first) - 1):
        total = np.zeros(SLICE, np.float32)
        for segment in range(a.first[s], a.first[s + 1]):
            for k in range(a.start[segment], a.start[segment + 1]):
                total += a.values[k].astype(np.float32) * x[a.base[segment] + a.columns[k].astype(np.int64)]
        lanes = slice(SLICE * s, SLICE * (s + 1))
        there = a.place[lanes] >= 0
        y[a.place[lanes][there]] = (total * a.unit[lanes])[there]
    return y
