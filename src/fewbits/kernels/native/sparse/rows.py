"""Products of compressed rows; kernels/reference/sparse/rows.py defines them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.kernels.bits.sparse_rows import SparseRows
from fewbits.kernels.native.dispatch.isa import active_isa


class RowProduct:
    """The product with one matrix, whose arrays are read where they lie."""

    def __init__(self, a: SparseRows) -> None:
        active_isa()
        storage = getattr(_native.Storage, a.storage)
        self._rows = _native.SparseRows(
            a.rows,
            a.first,
            a.start,
            a.base,
            storage,
            a.values,
            a.columns,
            a.runs,
            a.unit,
            a.place,
        )
        self.rows = a.rows

    def __call__(self, x: NDArray[np.float32], threads: int) -> NDArray[np.float32]:
        """Return A x."""
        y = np.empty(self.rows, np.float32)
        _native.multiply_rows(self._rows, x, y, threads)
        return y
