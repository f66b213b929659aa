"""Products with compressed sparse rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels import native
from fewbits.kernels.arrays.threads import threads
from fewbits.kernels.bits.sparse_rows import SparseRows

Singles = NDArray[np.float32]


def row_product(a: SparseRows) -> Callable[[Singles], Singles]:
    """Return the function from x, (columns,) float32, to A x, (rows,); A is not copied.

    :mod:`fewbits.kernels.reference.sparse.rows` defines it.
    """
    product = native.RowProduct(a)
    return lambda x: product(x, threads())
