"""Sparse matrices with values and column indices of 16 bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from fewbits.errors import ArgumentError
from fewbits.formats import SCALED_FP16, SITE_INT16, Format
from fewbits.kernels.arrays.sparse import row_product
from fewbits.kernels.bits.sparse_rows import SparseRows, compress
from fewbits.solvers.operators.matrices import Matrix, SparseMatrix
from fewbits.solvers.operators.operator import Apply
from fewbits.tensor import fake_quantize

# Formats of the matrix that lie as 16 bits; a block of values is a row here.
_HALVES = {replace(SCALED_FP16, size=size) for size in ("channel", "tensor")}
_INTEGERS = {replace(SITE_INT16, size=size) for size in ("channel", 32, 24)}
_LARGEST = {"f16": 2.0**15, "i16": 32767.0}


class CompressedRows(Matrix):
    """A square sparse matrix whose narrow product reads 4 bytes per entry instead of 12.

    Column indices are 16-bit differences from a base. Values are float16 with a power of two for each row
    (``scaled_fp16``), 16-bit integers with a norm for each row (``site_int16``), or any other format, held in
    float32. The exact product uses the original matrix.

    Args:
        A: a SciPy or torch sparse matrix.
        symmetric: whether A is known to be symmetric (Hermitian).

    Raises:
        ArgumentError: not a square sparse matrix.
        DataError: NaN or infinity among the values.
    """

    preferred = "scaled_fp16"

    def __init__(self, A: SparseMatrix | torch.Tensor, *, symmetric: bool = False) -> None:
        super().__init__(A)
        if not self.sparse or self.rows != self.n:
            raise ArgumentError(f"A is dense, or {self.rows} x {self.n}; expected a square sparse matrix")
        self.symmetric = symmetric
        self.a.sum_duplicates()  # and sorts the columns of each row

    def compressed(self, format: Format | None, *, imaginary: bool = False) -> SparseRows:
        """Return the rows in the layout of the kernel, with values rounded to ``format``.

        For a complex matrix they are its real parts, or with ``imaginary`` its imaginary parts.
        """
        all_values = self.a.data.imag if imaginary else self.a.data.real
        storage = "f16" if format in _HALVES else "i16" if format in _INTEGERS else "f32"
        values = all_values.astype(np.float32)
        unit = np.ones(self.n, np.float32)
        if storage == "f32":
            values = values if format is None else fake_quantize(values, format)
        else:
            unit = _units(all_values, self.a.indptr, storage)
            units = values / np.repeat(unit, np.diff(self.a.indptr))
            values = units.astype(np.float16) if storage == "f16" else np.rint(units).astype(np.int16)
        return compress(self.a.indptr, self.a.indices, values, unit, storage, self.n)

    def rounded(self, format: Format | None) -> Apply:
        """Return the product with a float32 or complex64 vector, A's values held in ``format``."""
        real = _product(self.compressed(format))
        if not self.complex:
            return real
        imaginary = _product(self.compressed(format, imaginary=True))

        def apply(v: torch.Tensor) -> torch.Tensor:
            u, w = v.real, v.imag
            return torch.complex(real(u) - imaginary(w), real(w) + imaginary(u))

        return apply


def _product(rows: SparseRows) -> Apply:
    product = row_product(rows)
    return lambda v: torch.from_numpy(product(v.contiguous().numpy()))


def _units(values: NDArray[np.float64], starts: NDArray[np.integer], storage: str) -> NDArray[np.float32]:
    """Return the scale of each row, so that its largest value is the largest that the storage holds."""
    lengths = np.diff(starts)
    largest = np.zeros(len(lengths))
    full = lengths > 0
    if full.any():
        largest[full] = np.maximum.reduceat(np.abs(values), starts[:-1][full])
    unit = np.where(largest > 0, largest / _LARGEST[storage], 1.0)
    if storage == "f16":
        share, exponent = np.frexp(unit)
        unit = np.ldexp(1.0, exponent - (share == 0.5))
    return np.clip(unit, 2.0**-126, 2.0**127).astype(np.float32)
