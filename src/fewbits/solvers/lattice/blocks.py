"""Hermitian 6x6 blocks, two for each site, packed as 72 real numbers with a norm for each block.

Clark et al., Solving Lattice QCD systems of equations using mixed precision solvers on GPUs, 2010, keep the
clover term so.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fewbits.kernels.bits.lattice import BLOCK_REALS, SITES
from fewbits.solvers.lattice.fixed_point import Norms, decode, encode
from fewbits.solvers.lattice.order import grouped

Array = NDArray[Any]

_ROW, _COLUMN = np.tril_indices(6, -1)


class Blocks(NamedTuple):
    """The blocks of all sites.

    Attributes:
        values: (groups, 2, 36, 16), float64, float32, int16 or int8: the diagonal, then real and imaginary
            parts below it, row by row.
        norms: (groups, 2, 16) float32 where values are integers, else None.
    """

    values: Array
    norms: Norms | None

    @classmethod
    def packed(cls, matrices: Array, dtype: DTypeLike) -> Blocks:
        """Pack (T, Z, Y, X, 2, 6, 6) Hermitian matrices."""
        diagonal = matrices.diagonal(axis1=-2, axis2=-1).real
        below = np.ascontiguousarray(matrices[..., _ROW, _COLUMN]).view(np.float64)
        numbers = np.concatenate([diagonal, below], -1).reshape(*matrices.shape[:4], 2 * BLOCK_REALS)
        return cls(*encode(grouped(numbers).reshape(-1, 2, BLOCK_REALS, SITES), dtype, 2))

    def widened(self) -> Blocks:
        """Return the same values in float32."""
        return Blocks(decode(self.values, self.norms, 2).astype(np.float32), None)
