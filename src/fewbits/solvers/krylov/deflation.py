"""Low modes of a symmetric matrix, found in low precision and taken out of the residual.

Stathopoulos and Orginos, Computing and deflating eigenvalues while solving multiple right hand side linear
systems in quantum chromodynamics, 2010. The modes need not be accurate: what is taken out is the Galerkin
solution on their span, with the small matrix V^T A V in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh

from fewbits.errors import ArgumentError
from fewbits.formats import Format
from fewbits.solvers.krylov.problem import check_symmetric
from fewbits.solvers.krylov.space import narrow
from fewbits.solvers.operators import Operator, operator
from fewbits.tensor import quantize


class Deflation:
    """A basis of low modes, stored narrow.

    Args:
        a: the matrix or operator.
        modes: (n, k) columns, roughly eigenvectors of small eigenvalues.
        stored: the format that the basis is packed in; None keeps it in float32.

    Raises:
        ArgumentError: no (n, k), or the columns depend on each other.
    """

    def __init__(self, a: Any, modes: torch.Tensor, stored: str | Format | None = "quda_half") -> None:
        if modes.ndim != 2 or not 0 < modes.shape[1] <= modes.shape[0]:
            raise ArgumentError(f"modes have the shape {tuple(modes.shape)}; expected (n, k) with k <= n")
        self.a: Operator = operator(a, len(modes))
        rows = modes.detach().float().T.contiguous()
        self._basis: Any = rows if stored is None else quantize(rows, stored)
        basis = self.basis.double()
        images = torch.stack([self.a.exact(v) for v in basis])
        gram = self.a.total(basis @ images.T)
        self._factor, failed = torch.linalg.cholesky_ex((gram + gram.T) / 2)
        if failed:
            raise ArgumentError("the modes depend on each other, or A is not positive definite on them")

    @property
    def nbytes(self) -> int:
        """Bytes of the basis."""
        return int(self._basis.nbytes)

    @property
    def basis(self) -> torch.Tensor:
        """The modes as they are stored, (k, n) float32."""
        found: torch.Tensor = self._basis if type(self._basis) is torch.Tensor else self._basis.dequantize()
        return found

    def correction(self, r: torch.Tensor) -> torch.Tensor:
        """Return V (V^T A V)^-1 V^T r, (n,) float64: the solution in the span of the modes."""
        basis = self.basis.double()
        weights = torch.cholesky_solve(self.a.total(basis @ r)[:, None], self._factor)
        return (weights.T @ basis)[0]


def low_modes(a: Any, n: int, k: int, *, matrix: str = "fp32", tol: float = 1e-2) -> torch.Tensor:
    """Return roughly the eigenvectors of the k smallest eigenvalues of a symmetric A, (n, k) float32.

    ARPACK's implicitly restarted Lanczos method in float32, on the product with A held in ``matrix``.

    Raises:
        ArgumentError: k out of range, or A is not symmetric.
        scipy.sparse.linalg.ArpackNoConvergence: it did not converge to ``tol``.
    """
    one = operator(a, n)
    if not 0 < k < n - 1:
        raise ArgumentError(f"k={k} modes of {n}; expected from 1 to {n - 2}")
    check_symmetric(one)
    apply = one.narrowed(narrow(matrix))
    low = LinearOperator(
        (n, n),
        lambda v: apply(torch.from_numpy(np.ascontiguousarray(v, np.float32))).numpy(),
        dtype=np.float32,
    )
    start = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    _, modes = eigsh(low, k, which="SA", tol=tol, v0=start, ncv=min(n, max(3 * k, 20)))
    return torch.from_numpy(np.ascontiguousarray(modes))
