"""Hermitian 6x6 blocks, two for each site, packed as 72 real numbers with a norm for each block.

Clark et al., Solving Lattice QCD systems of equations using mixed precision solvers on GPUs, 2010, keep the
clover term so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fewbits.kernels.bits.lattice import REALS, SITES, Field
from fewbits.solvers.lattice.fixed_point import Norms, decode, encode
from fewbits.solvers.lattice.order import grouped

Array = NDArray[Any]

NUMBERS = 36  # of a Hermitian 6x6 matrix: the diagonal, then real and imaginary parts below it
AT_ONCE = 256  # groups whose blocks are unpacked at a time: they stay in the cache
_ROW, _COLUMN = np.tril_indices(6, -1)
# Where the real and the imaginary part of each entry lie among the 36, and the sign of the imaginary one.
_REAL, _IMAG, _SIGN = np.diag(np.arange(6)), np.zeros((6, 6), np.intp), np.zeros((6, 6, 1))
_REAL[_ROW, _COLUMN] = _REAL[_COLUMN, _ROW] = 6 + 2 * np.arange(15)
_IMAG[_ROW, _COLUMN] = _IMAG[_COLUMN, _ROW] = 7 + 2 * np.arange(15)
_SIGN[_ROW, _COLUMN], _SIGN[_COLUMN, _ROW] = 1, -1


@dataclass(frozen=True)
class Blocks:
    """The blocks of some groups of 16 sites.

    Attributes:
        values: (groups, 2, 36, 16), float64, float32, int16 or int8.
        norms: (groups, 2, 16) float32 where values are integers, else None.
        groups: which groups of a field these are.
    """

    values: Array
    norms: Norms | None
    groups: NDArray[np.intp]

    @classmethod
    def packed(cls, matrices: Array, dtype: DTypeLike, groups: NDArray[np.intp]) -> Blocks:
        """Pack (T, Z, Y, X, 2, 6, 6) Hermitian matrices, of which only those groups are kept."""
        diagonal = matrices.diagonal(axis1=-2, axis2=-1).real
        below = np.ascontiguousarray(matrices[..., _ROW, _COLUMN]).view(np.float64)
        numbers = np.concatenate([diagonal, below], -1).reshape(*matrices.shape[:4], 2 * NUMBERS)
        kept = grouped(numbers)[groups].reshape(-1, 2, NUMBERS, SITES)
        return cls(*encode(kept, dtype, 2), groups)

    @property
    def nbytes(self) -> int:
        """Bytes of values and norms."""
        return self.values.nbytes + (0 if self.norms is None else self.norms.nbytes)

    def widened(self) -> Blocks:
        """Return the same values in float32."""
        return Blocks(decode(self.values, self.norms, 2).astype(np.float32), None, self.groups)

    def times(self, field: Field, out: Field) -> None:
        """Let ``out`` be the blocks times ``field`` on these groups; they may be the same field."""
        for first in range(0, len(self.groups), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            groups = self.groups[part]
            norms = None if field.norms is None else field.norms[groups]
            spinors = decode(field.values[groups], norms, 1).reshape(-1, 2, 6, 2, SITES)
            v = spinors[:, :, :, 0] + 1j * spinors[:, :, :, 1]
            numbers = self.values[part].astype(v.real.dtype, copy=False)
            matrices = np.empty((len(groups), 2, 6, 6, SITES), v.dtype)
            matrices.real = numbers[:, :, _REAL]
            matrices.imag = numbers[:, :, _IMAG] * _SIGN.astype(numbers.dtype)
            product = np.einsum("gcijs,gcjs->gcis", matrices, v)
            if self.norms is not None:
                product *= self.norms[part][:, :, None]
            reals = np.stack([product.real, product.imag], 3).reshape(-1, REALS, SITES)
            codes, of_sites = encode(reals, out.values.dtype, 1)
            out.values[groups] = codes
            if out.norms is not None:
                out.norms[groups] = of_sites
