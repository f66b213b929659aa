"""Low modes of a symmetric matrix, computed in low precision and projected out of the residual.

Stathopoulos and Orginos, Computing and deflating eigenvalues while solving multiple right hand side linear
systems in quantum chromodynamics, 2010. The modes need not be accurate: the correction is the Galerkin
solution on their span, with the small matrix V^H A V in float64.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh

from fewbits.errors import ArgumentError
from fewbits.formats import Format
from fewbits.solvers.krylov.space import rounding_format
from fewbits.solvers.krylov.stopping import check_count
from fewbits.solvers.krylov.system import FAR, check_symmetric, comfortable
from fewbits.solvers.operators.adapters import LinearMap, operator
from fewbits.solvers.operators.agreement import agreeing, check_columns, in_one
from fewbits.solvers.operators.operator import OnPairs, Operator
from fewbits.solvers.operators.vectors import (
    array,
    exponent_of,
    from_reals,
    real_number,
    reals,
    times_power,
    wide,
)
from fewbits.tensor import NarrowTensor, quantize
from fewbits.tensor.inputs import is_count
from fewbits.typing import AnyArray

DEPENDENT = 1e-12  # times the largest eigenvalue of V^H A V: directions below are only rounding error


class Deflation:
    """A basis of low modes, stored narrow; columns that depend on others are left out.

    Args:
        A: (n, n), the matrix or operator, as a solver takes it.
        modes: (n, k) columns, roughly eigenvectors of small eigenvalues; real or complex. Of a
            :class:`Partitioned` A the rows of this process, which may be fewer than k.
        format: the format that the basis is packed in, complex numbers as pairs; None keeps it in float32.

    Raises:
        ArgumentError: modes are not (n, k) or all zero, or A is not positive definite on their span.
        DataError: NaN or infinity. With rows spread over processes, all of them raise if one does.
    """

    def __init__(self, A: LinearMap, modes: AnyArray, format: str | Format | None = "quda_half") -> None:
        with agreeing(A, "the modes"):
            given, a = _read(A, modes)
        check_columns(a, given.shape[1], "modes")
        if given.shape[1] > (a.unknowns or a.n):  # of all processes: one may hold fewer rows than columns
            raise ArgumentError(
                f"modes have {given.shape[1]} columns for {a.unknowns or a.n} unknowns; expected (n, k) with"
                " k <= n"
            )
        if in_one(a, given.is_complex()):
            given = given.to(torch.complex128)
        a = OnPairs(a) if given.is_complex() and not a.complex else a
        self.a, self.exponent, _ = comfortable(a)
        self._pairs = given.is_complex()
        columns = torch.stack([self._near(v) for v in given.T.contiguous()])
        rows = reals(columns.to(torch.complex64 if self._pairs else torch.float32)).contiguous()
        self._basis: torch.Tensor = rows if format is None else quantize(rows, format)
        self._weights = self._inverse()

    def _near(self, v: torch.Tensor) -> torch.Tensor:
        """Return v, scaled by a power of two if its magnitude is far from one."""
        exponent = exponent_of(self.a.peak(v))
        return times_power(v, -exponent) if abs(exponent) > FAR else v

    def _inverse(self) -> torch.Tensor:
        """Return the pseudo-inverse of V^H A V, (k, k), on the linearly independent directions."""
        basis = self._wide()
        images = torch.stack([self.a.exact(v) for v in basis])
        gram = self.a.total(basis.conj() @ images.mT)
        # Columns are normalized, so that a small eigenvalue means dependent columns, not short ones.
        lengths = gram.diagonal().real.abs().sqrt()
        over = torch.where(lengths > 0, 1 / lengths, 0.0)
        values, vectors = torch.linalg.eigh((gram + gram.mH) / 2 * over * over[:, None])
        independent = values > DEPENDENT * len(basis)
        if float(values[0]) < -1e-6 or not bool(independent.any()):
            raise ArgumentError("the modes are zero, or A is not positive definite on them")
        vectors = vectors[:, independent] * over[:, None]
        inverse: torch.Tensor = (vectors / values[independent]) @ vectors.mH
        return inverse

    @property
    def nbytes(self) -> int:
        """Bytes of the basis."""
        return int(self._basis.nbytes)

    @property
    def basis(self) -> torch.Tensor:
        """The stored modes, (k, n) float32 or complex64; scaled by powers of two where needed."""
        basis = self._basis.dense() if isinstance(self._basis, NarrowTensor) else self._basis
        return from_reals(basis, pairs=self._pairs)

    def correction(self, r: torch.Tensor) -> torch.Tensor:
        """Return V (V^H A V)^-1 V^H r, (n,) in double precision: the solution in the span of the modes."""
        return times_power(self.scaled_correction(r), self.exponent)

    def scaled_correction(self, r: torch.Tensor) -> torch.Tensor:
        """Return the correction for A 2^exponent, (n,) in double precision."""
        dtype = torch.promote_types(self._weights.dtype, r.dtype)  # real modes serve a complex r
        basis, weights = self._wide().to(dtype), self._weights.to(dtype)
        return (weights @ self.a.total(basis.conj() @ r.to(dtype))) @ basis

    def _wide(self) -> torch.Tensor:
        return wide(self.basis).to(torch.complex128) if self.a.complex else wide(self.basis)


def _read(A: LinearMap, modes: AnyArray) -> tuple[torch.Tensor, Operator]:
    """Return the modes in double precision, and A.

    Raises:
        FewbitsError: as for :class:`Deflation`.
    """
    given = array(modes, "modes")
    if given.ndim != 2 or not given.shape[1]:
        raise ArgumentError(f"modes have the shape {tuple(given.shape)}; expected (n, k) with k <= n")
    a = operator(
        A,
        len(given),
        arrays=not isinstance(modes, torch.Tensor),
        complex_vectors=given.is_complex(),
        asked=f"modes have {len(given)} rows",
        device=given.device,
    )
    return given, a


def low_modes(A: LinearMap, n: int, k: int, *, format: str = "fp32", tol: float = 1e-2) -> torch.Tensor:
    """Return approximate eigenvectors for the k smallest eigenvalues of a symmetric (Hermitian) A.

    Uses ARPACK's implicitly restarted Lanczos method in float32, with A stored in ``format``, on the CPU.

    Args:
        A: (n, n), symmetric (Hermitian), as a solver takes it.
        n: unknowns.
        k: number of modes, from 1 to n - 2.
        format: the format of the values of A.
        tol: relative accuracy of the eigenvalues, as in scipy.sparse.linalg.eigsh; 0 for that of float32.

    Returns:
        (n, k) float32, or complex64 of a complex A.

    Raises:
        ArgumentError: n is no whole number, k or tol out of range, A on a device, not symmetric, or spread
            over processes.
        scipy.sparse.linalg.ArpackNoConvergence: ARPACK did not converge to ``tol``.
    """
    if isinstance(A, Operator) and float(A.total(torch.tensor(1.0, dtype=torch.float64))) > 1:
        raise ArgumentError(
            "A is spread over processes, and ARPACK adds up what lies in one; compute modes of the whole"
            " matrix in each process, and give Deflation the rows of its part, for a Partitioned A"
            " modes[A.start : A.start + A.n]"
        )
    check_count(n, "n")
    a, _, _ = comfortable(operator(A, n, asked=f"n={n}"))
    if not (is_count(k) and k < n - 1):
        raise ArgumentError(f"k={k} modes of {n}; expected a whole number from 1 to {n - 2}")
    accuracy = real_number(tol)
    if not 0 <= accuracy < math.inf:
        raise ArgumentError(f"tol={tol!r}; expected a relative accuracy of at least 0")
    check_symmetric(a)
    apply = a.rounded(rounding_format(format))
    dtype = np.complex64 if a.complex else np.float32
    low = LinearOperator(
        (n, n), lambda v: apply(torch.from_numpy(np.ascontiguousarray(v, dtype))).numpy(), dtype=dtype
    )
    start = np.random.default_rng(0).standard_normal(n).astype(dtype)
    if not low.matvec(start).any():  # ARPACK takes no start that A makes zero, and of zero all vectors serve
        return torch.eye(n, k, dtype=torch.complex64 if a.complex else torch.float32)
    _, modes = eigsh(low, k, which="SA", tol=accuracy, v0=start)
    return torch.from_numpy(np.ascontiguousarray(modes))
