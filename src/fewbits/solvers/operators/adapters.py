"""Conversion of matrices, functions and LinearOperators to :class:`Operator`."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from scipy.sparse.linalg import LinearOperator

from fewbits.errors import ArgumentError
from fewbits.formats import Format
from fewbits.solvers.operators.matrices import Matrix, SparseMatrix
from fewbits.solvers.operators.operator import Apply, Operator, random_vectors
from fewbits.solvers.operators.vectors import numbers, times_power, wide
from fewbits.typing import AnyArray

VectorFunction: TypeAlias = Callable[..., AnyArray]
"""A function of one vector, (n,), that returns A times it."""

LinearMap: TypeAlias = (
    AnyArray | Sequence[Sequence[complex]] | SparseMatrix | LinearOperator | VectorFunction | Operator
)
"""All types that a Krylov solver accepts as a matrix."""

_CPU = torch.device("cpu")
SAME = 1e-6  # relative difference of two images up to which rounding explains it


class Function(Operator):
    """A function of vectors in double precision, (n,) to (n,).

    Args:
        apply: the function.
        shape: (length of the result, length of the argument).
        arrays: whether it takes numpy.ndarray; otherwise it takes torch.Tensor.
        complex_vectors: whether to try it on complex vectors; if it fails, or drops imaginary parts, it is
            applied to real and imaginary parts.
        adjoint: the function of A^H, if there is one.

    Raises:
        ArgumentError: its result is not a vector of the expected length.
    """

    def __init__(
        self,
        apply: VectorFunction,
        shape: tuple[int, int],
        *,
        arrays: bool,
        complex_vectors: bool,
        adjoint: VectorFunction | None = None,
        device: torch.device = _CPU,
    ) -> None:
        self._rows, self.n = shape
        self.device = device
        self._apply, self._adjoint, self._arrays, self._exponent = apply, adjoint, arrays, 0
        self.complex = False
        (v,) = random_vectors(self, 1)
        image = self.exact(v)
        self.complex = image.is_complex() or (complex_vectors and self._takes_complex(v, image))

    def _takes_complex(self, v: torch.Tensor, image: torch.Tensor) -> bool:
        """Return whether the image of i v is i times that of v; real functions fail, or drop all of it."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # NumPy and torch warn of what they drop
                turned = self.exact(1j * v)
        except (TypeError, ValueError, RuntimeError):
            return False
        return turned.is_complex() and torch.allclose(turned, 1j * image, rtol=SAME, atol=0.0)

    @property
    def rows(self) -> int:
        """Return how many values A v has."""
        return self._rows

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return the function of a copy of v."""
        out = self._apply(v.numpy().copy() if self._arrays else v.clone())
        # Copied, because a function may return memory that its next call overwrites.
        own = out.detach().clone() if isinstance(out, torch.Tensor) else out
        product = numbers(own, "what a function gives")
        if product.device != v.device:
            raise ArgumentError(
                f"a function gives a result on {product.device} for a vector on {v.device}; expected both"
                " there: move what the function multiplies by, or b"
            )
        if product.numel() != self._rows:
            raise ArgumentError(
                f"a function gives the shape {tuple(product.shape)} for {self.n} values; expected"
                f" ({self._rows},)"
            )
        product = times_power(product.reshape(-1), self._exponent)
        return product.to(torch.complex128) if self.complex else product

    def rounded(self, format: Format | None) -> Apply:
        """Return the function itself; its matrix cannot be held in a format."""
        if format is not None:
            raise ArgumentError(
                f"A is a function, whose values cannot be held in {format}; give a matrix, or fp32 for it"
            )
        return lambda v: self.exact(wide(v)).to(v.dtype)

    def adjoint(self) -> Operator:
        """Return A^H."""
        if self._adjoint is None:
            return super().adjoint()
        swapped = copy.copy(self)
        swapped._apply, swapped._adjoint, swapped._rows, swapped.n = (
            self._adjoint,
            self._apply,
            self.n,
            self._rows,
        )
        try:
            dtype = torch.complex128 if self.complex else torch.float64
            swapped.exact(torch.zeros(swapped.n, dtype=dtype, device=self.device))
        except NotImplementedError:
            return super().adjoint()
        return swapped

    def scaled(self, exponent: int) -> Operator:
        """Return A 2^exponent."""
        scaled = copy.copy(self)
        scaled._exponent = self._exponent + exponent
        return scaled


def operator(
    a: LinearMap,
    n: int,
    *,
    arrays: bool = True,
    complex_vectors: bool = False,
    name: str = "A",
    asked: str = "",
    device: torch.device = _CPU,
) -> Operator:
    """Return ``a`` as an operator on vectors of n values; an operator is returned unchanged.

    Args:
        a: a matrix, a LinearOperator (``matvec``, and ``rmatvec`` if it has one), a function, or an
            :class:`Operator`.
        n: unknowns.
        arrays: whether functions take numpy.ndarray; otherwise they take torch.Tensor.
        complex_vectors: whether to try functions on complex vectors.
        name: what error messages call it.
        asked: what n is of, if not of b, as they say it.
        device: where the vectors lie.

    Raises:
        ArgumentError: a cannot multiply a vector on that device, or is not (n, n).
        DataError: NaN or infinity among the values.
    """
    given = any_operator(a, n, n, arrays=arrays, complex_vectors=complex_vectors, name=name, device=device)
    if (given.rows, given.n) != (n, n):
        raise ArgumentError(
            f"{name} has the shape ({given.rows}, {given.n}), {asked or f'b has {n} values'}; expected a"
            " square matrix of that size"
        )
    return given


def any_operator(
    a: LinearMap,
    rows: int,
    n: int | None,
    *,
    arrays: bool,
    complex_vectors: bool,
    name: str = "A",
    device: torch.device = _CPU,
) -> Operator:
    """Return ``a`` as an operator that need not be square; only a function needs n.

    Raises:
        ArgumentError: a cannot multiply vectors on that device; nothing is copied in silence.
    """
    found = _any_operator(a, rows, n, name, arrays=arrays, complex_vectors=complex_vectors, device=device)
    if found.device != device:
        what = (
            "is a matrix" if isinstance(found, Matrix) else f"is a {type(found).__name__}, which multiplies"
        )
        move = f"{name}.to({str(device)!r})" if isinstance(a, torch.Tensor) else "b.cpu()"
        raise ArgumentError(
            f"{name} {what} on {found.device}, and the vectors are on {device}; they are multiplied where"
            f" both lie: give {move}"
        )
    return found


def _any_operator(
    a: LinearMap,
    rows: int,
    n: int | None,
    name: str,
    *,
    arrays: bool,
    complex_vectors: bool,
    device: torch.device,
) -> Operator:
    if isinstance(a, Operator):
        return a
    if hasattr(a, "matvec") and hasattr(a, "shape"):
        adjoint = getattr(a, "rmatvec", None)
        shape = (int(a.shape[0]), int(a.shape[1]))
        real = getattr(getattr(a, "dtype", None), "kind", "c") in "biuf"
        complex_vectors = complex_vectors and not real
        return Function(a.matvec, shape, arrays=True, complex_vectors=complex_vectors, adjoint=adjoint)
    if callable(a) and not isinstance(a, torch.Tensor):
        if n is None:
            raise ArgumentError(f"{name} is a function, whose shape is not known; give a LinearOperator")
        place = _CPU if arrays else device
        return Function(a, (rows, n), arrays=arrays, complex_vectors=complex_vectors, device=place)
    return Matrix(a, name=name)
