"""Dense factorizations that are reused for many right-hand sides, and the solution of a single system."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from fewbits.errors import ArgumentError
from fewbits.solvers.dense import arrays, batches, evidence, fallback, gradients
from fewbits.solvers.dense.arrays import as_given, check_finite, columns_of, with_gradient
from fewbits.solvers.dense.fallback import Outcome
from fewbits.solvers.dense.plan import plan, precisions
from fewbits.solvers.dense.prepared_matrix import PreparedMatrix
from fewbits.solvers.precision import ASSUMPTIONS, Precision
from fewbits.solvers.solution import Solution
from fewbits.typing import AnyArray, Array, Watch


class Factorization:
    """A square matrix, factorized once for any number of right-hand sides.

    ``factorize(A).solve(b)`` returns a :class:`Solution`, ``factorize(A)(b)`` only the array x.

    Args:
        A: (n, n) numpy.ndarray, torch.Tensor or nested list of real or complex numbers. It is kept and, in
            double precision, not copied: leave it as it is.
        precision: as in :func:`fewbits.solve`. What ``auto`` takes is chosen for each right-hand side.
        assume_a: ``gen``, or ``pos`` for Hermitian positive definite: Cholesky takes half the time of LU. LU
            follows if a pivot is not positive.

    Raises:
        ArgumentError: not a square matrix, or no such precision or assumption.
        DataError: NaN or infinity in it, or it is not Hermitian where that is assumed.
    """

    def __init__(
        self,
        A: AnyArray | Sequence[Sequence[complex]],
        precision: str | Precision = "auto",
        *,
        assume_a: str = "gen",
    ) -> None:
        self._given = with_gradient(A, "A")
        a = self._given.detach()
        _check_square(a, assume_a)
        self.plan = plan(precision, assume_a, len(a), a.device)
        self._matrix = PreparedMatrix(a, self.plan.steps)

    def solve(self, b: Array, *, watch: Watch | None = None) -> Solution[Array]:
        """Solve A x = b.

        Args:
            b: (n,) or (n, k).
            watch: called as ``watch(precision, iteration, error)`` with the number of residuals before and
                each new componentwise backward error.

        Returns:
            x in the shape of b, an array or tensor like b, with its evidence and its gradient.

        Raises:
            ArgumentError: a shape that does not fit.
            DataError: NaN or infinity in b, or A is singular.
        """
        run = _Run(lambda _: self, watch, judged=True)
        x = _solved(self._given, b, run)
        return evidence.nothing(x) if run.first is None else evidence.solution(x, run.first)

    def __call__(self, b: Array) -> Array:
        """Return only x, without the error estimates that :meth:`solve` computes.

        Args:
            b: (n,) or (n, k).

        Raises:
            ArgumentError: a shape that does not fit.
            DataError: NaN or infinity in b, or A is singular.
        """
        return _solved(self._given, b, _Run(lambda _: self))

    def columns(
        self, b: torch.Tensor, watch: Watch | None = None, *, adjoint: bool = False, judged: bool = False
    ) -> Outcome:
        """Solve A x = b, or A^H x = b, for the columns of b, (n, k) float64 or complex128.

        Args:
            b: right-hand sides.
            watch: see :meth:`solve`.
            adjoint: whether to solve with A^H.
            judged: whether to compute the residual even if no step needs it.

        Raises:
            DataError: NaN or infinity in b, or A is singular.
        """
        check_finite(b, "b")
        a = self._matrix.a
        if b.is_complex() and not a.is_complex():
            parts = self.columns(torch.cat([b.real, b.imag], 1), watch, adjoint=adjoint, judged=judged)
            real, imaginary = parts.x.chunk(2, 1)
            return replace(parts, x=torch.complex(real.contiguous(), imaginary.contiguous()))
        steps = self.plan.for_columns(*b.shape)
        return fallback.run(self._matrix, b.to(a.dtype), steps, watch, adjoint=adjoint, judged=judged)


def factorize(
    A: AnyArray | Sequence[Sequence[complex]],
    precision: str | Precision = "auto",
    *,
    assume_a: str = "gen",
) -> Factorization:
    """Prepare a matrix for many right-hand sides; ``solve(b)`` of the result returns a :class:`Solution`.

    Args:
        A: (n, n) numpy.ndarray, torch.Tensor or nested list of real or complex numbers. It is kept and, in
            double precision, not copied: leave it as it is.
        precision: as in :func:`fewbits.solve`. What ``auto`` takes is chosen for each right-hand side.
        assume_a: ``gen``, or ``pos`` for a Hermitian positive definite matrix and Cholesky.

    Raises:
        ArgumentError: not a square matrix, or no such precision or assumption.
        DataError: NaN or infinity in it, or it is not Hermitian where that is assumed.

    >>> import numpy as np
    >>> solution = factorize(np.array([[2.0, 1.0], [1.0, 3.0]])).solve(np.array([3.0, 5.0]))
    >>> solution.x, solution.converged
    (array([0.8, 1.4]), True)
    """
    return Factorization(A, precision, assume_a=assume_a)


def solve(
    A: AnyArray | Sequence[Sequence[complex]],
    b: Array,
    *,
    precision: str | Precision = "auto",
    assume_a: str = "gen",
) -> Array:
    """Return the solution of A x = b, as accurate as double precision makes it.

    The matrix is equilibrated by powers of two and factorized in a narrow format. The solution is refined
    with residuals in about twice the precision of float64, until every entry of |b - A x| is at most 2^-53
    (|A| |x| + |b|), or twice that if it stops falling. If refinement does not reach this, the next wider
    format is tried, and double precision last. A matrix that is singular to working precision gives a
    RuntimeWarning with the solution, as in SciPy. Gradients with respect to A and b come from the same
    factors. ``factorize(A).solve(b)`` also returns the error estimates and each attempt.

    Tensors on a device are solved there, by torch's own linear algebra and operations; the host reads norms,
    pivots and errors, by which it decides what to do next.

    Args:
        A: (n, n), or (..., n, n) for many systems; numpy.ndarray, torch.Tensor or nested lists of real or
            complex numbers.
        b: (n,) or (n, k); for many systems (..., n) if its leading axes are exactly those of A, else (..., n,
            k), whose leading axes broadcast with those of A.
        precision: ``auto``, a name of :data:`PRECISIONS`, a format, or either of these with other roles, such
            as ``bf16x2:refinement=gmres``.
        assume_a: ``gen``, or ``pos`` for a Hermitian positive definite matrix and Cholesky, as in
            scipy.linalg.solve.

    Returns:
        x in the shape of b; an array or tensor like b.

    Raises:
        ArgumentError: shapes that do not fit, or no such precision or assumption.
        DataError: NaN or infinity in the input, a singular matrix, or one that is not Hermitian where that is
            assumed.

    >>> import numpy as np
    >>> solve(np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([3.0, 5.0]))
    array([0.8, 1.4])
    """
    # Refused also where nothing is to solve.
    planned = precisions(precision, max(arrays.shape(A)[-1:], default=0), _place(A))
    if max(len(arrays.shape(A)), len(arrays.shape(b))) > 2:
        _check_assumption(assume_a)
        lapack = assume_a == "gen" and len(planned) == 1
        return batches.solve(A, b, partial(solve, precision=precision, assume_a=assume_a), lapack)
    a = with_gradient(A, "A")
    _check_square(a, assume_a)
    return _solved(a, b, _Run(lambda a: Factorization(a, precision, assume_a=assume_a)))


def _place(A: object) -> torch.device:
    return A.device if isinstance(A, torch.Tensor) else torch.device("cpu")


def _check_square(a: torch.Tensor, assume_a: str) -> None:
    """Raise ArgumentError if the matrix is not square or ``assume_a`` is unknown."""
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ArgumentError(f"A has the shape {tuple(a.shape)}; expected a square matrix")
    _check_assumption(assume_a)


def _check_assumption(assume_a: str) -> None:
    if assume_a not in ASSUMPTIONS:
        raise ArgumentError(f"assume_a={assume_a!r}; expected one of {', '.join(ASSUMPTIONS)}")


class _Run:
    """Solves with one matrix, factorized at the first call; implements :class:`gradients.Run`."""

    def __init__(
        self,
        make: Callable[[torch.Tensor], Factorization],
        watch: Watch | None = None,
        *,
        judged: bool = False,
    ) -> None:
        self.first: Outcome | None = None
        self.warnings: dict[str, None] = {}  # in order, each once
        self._make, self._watch, self._judged = make, watch, judged
        self._factors: Factorization | None = None

    def __call__(self, a: torch.Tensor, b: torch.Tensor, adjoint: bool) -> torch.Tensor:
        self._factors = self._factors or self._make(a.detach())
        outcome = self._factors.columns(b.detach(), self._watch, adjoint=adjoint, judged=self._judged)
        self.first = self.first or outcome
        if outcome.warning:
            self.warnings[outcome.warning] = None
        return outcome.x.clone()  # autograd changes what is returned; the outcome must not change

    def fresh(self) -> _Run:
        other = _Run(self._make, self._watch, judged=self._judged)
        other.warnings = self.warnings
        return other


def _solved(a: torch.Tensor, b: Array, run: _Run) -> Array:
    """Return the solution in b's shape, with its gradient; warn if it cannot be trusted."""
    columns = columns_of(b, a)
    if a.is_complex():
        columns = columns.to(a.dtype)
    if columns.numel() == 0:
        return as_given(columns.clone(), b)
    x = gradients.solve(a, columns, run)
    for text in run.warnings:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    return as_given(x, b)
