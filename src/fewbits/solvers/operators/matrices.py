"""Dense and sparse matrices of NumPy, SciPy and PyTorch as operators, in every layout."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse
import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.formats import Format
from fewbits.kernels.portable.dense.residuals import residuals
from fewbits.solvers.operators.operator import Apply, Operator
from fewbits.solvers.operators.vectors import (
    array,
    from_reals,
    largest,
    reals,
    refuse_gradients,
    times_power,
    wide,
)
from fewbits.tensor import fake_quantize
from fewbits.typing import AnyArray, NumpyArray

Rows: TypeAlias = Sequence[Sequence[complex]]
"""A matrix as nested lists."""

SparseMatrix: TypeAlias = scipy.sparse.sparray | scipy.sparse.spmatrix
"""A sparse matrix of SciPy, in any layout; those of PyTorch are tensors."""

BLOCK = 2**20  # values converted to long double at once


class Matrix(Operator):
    """A dense or sparse matrix of NumPy, SciPy or PyTorch.

    Args:
        A: a torch.Tensor (dense or sparse), a numpy.ndarray, nested lists, or a SciPy sparse matrix or array
            of any layout; real or complex.
        name: what error messages call it.

    Raises:
        ArgumentError: A is none of these, or not two-dimensional.
        DataError: NaN or infinity among the values.
    """

    def __init__(self, A: AnyArray | Rows | SparseMatrix, *, name: str = "A") -> None:
        self.name = name
        self.a: Any = _matrix(A, name)  # a tensor in double precision, or compressed rows of SciPy
        self.sparse = not isinstance(self.a, torch.Tensor)
        shape = tuple(self.a.shape)
        if len(shape) != 2:
            raise ArgumentError(f"{name} has the shape {shape}; expected a matrix")
        self.n = shape[1]
        values = self._values()
        self.complex, self.device = values.is_complex(), values.device
        if not bool(torch.isfinite(reals(values)).all()):
            raise DataError(f"{name} holds NaN or infinity; remove them first")

    @property
    def rows(self) -> int:
        """Return how many values A v has."""
        return int(self.a.shape[0])

    def _values(self) -> torch.Tensor:
        values: torch.Tensor = torch.from_numpy(self.a.data) if self.sparse else self.a
        return values

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return A v, (n,), computed in double precision."""
        return torch.from_numpy(self.a @ v.numpy()) if self.sparse else self.a @ v

    def rounded(self, format: Format | None) -> Apply:
        """Return the product with a float32 or complex64 vector, A's values held in ``format``."""
        if self.sparse:
            low = rounded_rows(self.a, format)
            return lambda v: torch.from_numpy(low @ v.numpy())
        return rounded_values(self.a, format).matmul

    def residual(self, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return b - A x, products and sums in NumPy's long double; in two float64 on a device."""
        if self.device.type != "cpu":
            return _residual_there(self.a, b, x)
        return long_residual(self.a if self.sparse else self.a.numpy(), b, x)

    def adjoint(self) -> Operator:
        """Return A^H."""
        adjoint = copy.copy(self)
        adjoint.a = self.a.conj().T.tocsr() if self.sparse else self.a.mH.resolve_conj()
        adjoint.n = adjoint.a.shape[1]
        return adjoint

    def scaled(self, exponent: int) -> Matrix:
        """Return A 2^exponent.

        Raises:
            DataError: a value would lose digits.
        """
        values = self._values()
        changed = times_power(values, exponent)
        if not torch.equal(times_power(changed, -exponent), values):
            raise DataError(
                f"{self.name} holds values more than 1e300 apart, and no product with it means anything in"
                " double precision; scale its rows and columns first"
            )
        scaled = copy.copy(self)
        scaled.a = scipy.sparse.csr_array(self.a) if self.sparse else changed
        if self.sparse:
            scaled.a.data = changed.numpy()
        return scaled

    def magnitude(self) -> float:
        """Return the largest magnitude of its values."""
        return largest(self._values())


def rounded_values(values: torch.Tensor, format: Format | None) -> torch.Tensor:
    """Return values in float32 or complex64, held in ``format``; complex ones as pairs."""
    low = values.to(torch.complex64 if values.is_complex() else torch.float32)
    if format is None:
        return low
    return from_reals(fake_quantize(reals(low), format), pairs=low.is_complex())


def rounded_rows(a: scipy.sparse.csr_array, format: Format | None) -> scipy.sparse.csr_array:
    """Return compressed rows of SciPy in float32, their values held in ``format``; the indices are shared."""
    held = rounded_values(torch.from_numpy(a.data), format)
    return scipy.sparse.csr_array((held.numpy(), a.indices, a.indptr), shape=a.shape)


def long_residual(a: NumpyArray | scipy.sparse.csr_array, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return b - A x, a few rows at a time in long double; a dense NumPy array, or compressed rows."""
    dtype = np.clongdouble if b.is_complex() else np.longdouble
    r, long_x = b.numpy().astype(dtype), x.numpy().astype(dtype)
    rows: Any = a
    entries = rows.nnz if scipy.sparse.issparse(a) else rows.size
    step = max(1, BLOCK * len(r) // max(1, entries))
    with np.errstate(all="ignore"):
        for i in range(0, len(r), step):
            r[i : i + step] -= rows[i : i + step].astype(dtype) @ long_x
        return torch.from_numpy(r.astype(np.complex128 if b.is_complex() else np.float64))


def _residual_there(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return b - A x in about twice the precision of float64, on the device of a dense A."""
    if not a.is_complex():
        return residuals(a, x[None], b[None])[0][0]
    # Re(a x) is a real product with conj(x), Im(a x) one with i conj(x).
    pairs = torch.stack([reals(x.conj()), reals(1j * x.conj())])
    real, imaginary = residuals(reals(a), pairs, torch.stack([b.real, b.imag]))[0]
    return torch.complex(real, imaginary)


def _matrix(a: AnyArray | Rows | SparseMatrix, name: str) -> torch.Tensor | scipy.sparse.csr_array:
    """Return a tensor in double precision, or SciPy's compressed rows."""
    if hasattr(a, "tocsr"):
        return _rows(a, name)
    if isinstance(a, torch.Tensor) and a.layout != torch.strided:
        refuse_gradients(a, name)
        if a.device.type != "cpu":
            raise ArgumentError(
                f"{name} is a sparse tensor on {a.device}, and sparse matrices are multiplied on the CPU:"
                f" give {name}.cpu() and b.cpu(), or the function lambda v: {name} @ v, which is called where"
                " b lies"
            )
        if a.ndim != 2:
            raise ArgumentError(f"{name} has the shape {tuple(a.shape)}; expected a matrix")
        whole = wide(a.detach())  # before values at one place are added
        # A hybrid one holds rows or blocks in place of numbers.
        entries = (whole.to_dense() if whole.dense_dim() else whole).to_sparse_coo().coalesce()
        places = tuple(entries.indices().numpy())
        values = array(entries.values(), name).numpy()
        return _rows(scipy.sparse.csr_array((values, places), shape=tuple(a.shape)), name)
    if isinstance(a, (torch.Tensor, np.ndarray, list, tuple)):
        return array(a, name)
    raise ArgumentError(
        f"{name} is a {type(a).__name__}; expected a torch tensor, a NumPy array, a SciPy sparse matrix or"
        " LinearOperator, a function or an operator of fewbits.solvers"
    )


def _rows(a: SparseMatrix, name: str) -> scipy.sparse.csr_array:
    if not _double_at_most(a.dtype):
        raise ArgumentError(f"{name} is {a.dtype}; expected real or complex numbers, double at most")
    return scipy.sparse.csr_array(in_double(a).tocsr())


def in_double(a: SparseMatrix, *, copy: bool = True) -> SparseMatrix:
    """Return numbers in float64 or complex128, of others a copy; what a solver refuses is returned unchanged.

    Values at one place are added where a layout becomes another one, and in int8 100 + 100 is -56.
    """
    if not _double_at_most(a.dtype):
        return a
    return a.astype(np.complex128 if a.dtype.kind == "c" else np.float64, copy=copy)


def _double_at_most(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "buifc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8)
