"""Anything that multiplies a vector: matrices, functions, and operators with kernels of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.formats import Format
from fewbits.tensor import fake_quantize

if TYPE_CHECKING:
    from fewbits.solvers.krylov.engine import Engine
    from fewbits.solvers.precision import KrylovPrecision

Apply = Callable[[torch.Tensor], torch.Tensor]


class Operator:
    """A square matrix as what the solvers ask of it.

    Attributes:
        n: unknowns; in a partitioned operator, those that lie here.
        unknowns: of all processes.
        symmetric: whether that is known without trying.
        preferred: the precision that ``auto`` tries first.
    """

    n: int
    unknowns = 0  # as many as n where nothing else is said
    symmetric = False
    preferred = "single"

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return A v, (n,) float64, computed in float64."""
        raise NotImplementedError

    def narrowed(self, matrix: Format | None) -> Apply:
        """Return the product with a float32 vector, computed in float32 with A's values held in ``matrix``.

        None keeps them in float32.
        """
        raise NotImplementedError

    def shifted(self, shift: float) -> Operator:
        """Return A + shift."""
        return Shifted(self, shift)

    def engine(self, precision: KrylovPrecision) -> Engine | None:
        """Return vectors that live in this operator's own kernels, or None where the general ones serve."""
        del precision
        return None

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        """Return float64 sums over all unknowns, given those over the ones that lie here."""
        return sums

    def dot(self, u: torch.Tensor, v: torch.Tensor) -> float:
        """Return u^T v over all unknowns, summed in float64."""
        return float(self.total(torch.dot(u.double(), v.double())))

    def norm(self, v: torch.Tensor) -> float:
        """Return the Euclidean norm over all unknowns."""
        return float(self.total(torch.dot(v.double(), v.double())).sqrt())


class Matrix(Operator):
    """A dense or sparse matrix that others hold.

    Args:
        a: a torch.Tensor (dense or sparse), a numpy.ndarray or a SciPy sparse matrix.

    Raises:
        ArgumentError: none of these, or not square.
        DataError: NaN or infinity among the values.
    """

    def __init__(self, a: Any) -> None:
        self.a = _matrix(a)
        self.sparse = not isinstance(self.a, torch.Tensor)
        shape = tuple(self.a.shape)
        if len(shape) != 2 or shape[0] != shape[1]:
            raise ArgumentError(f"A has the shape {shape}; expected a square matrix")
        self.n = shape[0]
        if not bool(torch.isfinite(self._values()).all()):
            raise DataError("A holds NaN or infinity; remove them first")

    def _values(self) -> torch.Tensor:
        return torch.from_numpy(self.a.data) if self.sparse else self.a

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return A v; see :class:`Operator`."""
        return torch.from_numpy(self.a @ v.numpy()) if self.sparse else self.a @ v

    def narrowed(self, matrix: Format | None) -> Apply:
        """Return the cheap product; see :class:`Operator`."""
        if self.sparse:
            low = narrowed_rows(self.a, matrix)
            return lambda v: torch.from_numpy(low @ v.numpy())
        values = self._values().float()
        return (values if matrix is None else fake_quantize(values, matrix)).matmul


def narrowed_rows(a: Any, matrix: Format | None) -> Any:
    """Return compressed rows of SciPy in float32, their values held in ``matrix``; the indices are shared."""
    values = torch.from_numpy(a.data).float()
    held = values if matrix is None else fake_quantize(values, matrix)
    return scipy.sparse.csr_array((held.numpy(), a.indices, a.indptr), shape=a.shape)


class Function(Operator):
    """A function from a float64 or float32 torch vector, (n,), to one of the same dtype and length."""

    def __init__(self, a: Apply, n: int) -> None:
        self.n, self._apply = n, a

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return A v."""
        return self._apply(v)

    def narrowed(self, matrix: Format | None) -> Apply:
        """Return the function itself; its matrix cannot be held in a format."""
        if matrix is not None:
            raise ArgumentError(
                f"A is a function, whose values cannot be held in {matrix}; give a matrix, or fp32 for it"
            )
        return self._apply


class Shifted(Operator):
    """A plus a multiple of the identity."""

    def __init__(self, a: Operator, shift: float) -> None:
        self.a, self.shift, self.n, self.symmetric, self.preferred = a, shift, a.n, a.symmetric, a.preferred

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return A v + shift v."""
        return self.a.exact(v) + self.shift * v

    def narrowed(self, matrix: Format | None) -> Apply:
        """Return the cheap product; the shift is float32."""
        apply = self.a.narrowed(matrix)
        return lambda v: apply(v) + self.shift * v

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        """See :class:`Operator`."""
        return self.a.total(sums)


def operator(a: Any, n: int) -> Operator:
    """Return ``a`` as an operator on vectors of n values; one is returned as it is.

    Raises:
        ArgumentError: nothing that multiplies a vector, or not (n, n).
        DataError: NaN or infinity among the values.
    """
    found: Operator
    if isinstance(a, Operator):
        found = a
    elif callable(a) and not isinstance(a, torch.Tensor):
        found = Function(a, n)
    else:
        found = Matrix(a)
    if found.n != n:
        raise ArgumentError(
            f"A has the shape ({found.n}, {found.n}), b has {n} values; expected a square matrix of that size"
        )
    return found


def _matrix(a: Any) -> Any:
    """Return a float64 tensor, or a SciPy matrix of compressed rows."""
    if hasattr(a, "tocsr"):
        return a.tocsr().astype(np.float64)
    if isinstance(a, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(a, np.float64))
    if isinstance(a, torch.Tensor) and a.layout == torch.strided:
        return a.detach().to(torch.float64)
    if isinstance(a, torch.Tensor):
        entries = a.detach().to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
        places = tuple(entries.indices().numpy())
        return scipy.sparse.csr_array((entries.values().double().numpy(), places), shape=tuple(a.shape))
    raise ArgumentError(
        f"A is a {type(a).__name__}; expected a torch tensor, a NumPy array, a SciPy sparse matrix, a"
        " function or an operator of fewbits.solvers"
    )
