"""Least squares with growing Hessenberg matrices: one Givens rotation for each new column."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

Numbers = npt.NDArray[np.float64 | np.complex128]

_INVARIANT = 1e-14  # relative length that rounding leaves of a vector in the span of the others


class HessenbergQR:
    """Minimize |size e_1 - H y| for k Hessenberg matrices H, (j + 1, j), at once.

    A rotation of the last two rows turns each new column into one of a triangle R; the product of the
    rotations is stored as one unitary matrix (Saad and Schultz, GMRES, 1986, section 3.2).

    A space is complete when the next basis vector would be only rounding error, or when the new column
    depends on the others, as for a singular A. From then on its residual stays the same, and the weights of
    further columns are zero.

    Args:
        size: (k,) float64, the norms of the first residuals; a space whose residual is zero is complete.
        maxiter: largest number of columns.
        dtype: float64 or complex128.
    """

    def __init__(self, size: npt.NDArray[np.float64], maxiter: int, dtype: npt.DTypeLike) -> None:
        k = len(size)
        self.columns = 0
        self.complete = size == 0
        self._rotations: Numbers = np.zeros((k, maxiter + 1, maxiter + 1), dtype)
        self._rotations[:, 0, 0] = 1
        self._r: Numbers = np.zeros((k, maxiter, maxiter), dtype)
        self._right: Numbers = np.zeros((k, maxiter + 1), dtype)
        self._right[:, 0] = size

    def append(
        self, overlaps: Numbers, below: npt.NDArray[np.float64], before: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """Add a column to each H, and return the norms of the least residuals, (k,).

        Args:
            overlaps: (k, j + 1), the column down to the diagonal.
            below: (k,), the entry below the diagonal: the norm of the new vector after orthogonalization.
            before: (k,), the norm of that vector before orthogonalization.
        """
        j = self.columns
        rotated = (self._rotations[:, : j + 1, : j + 1] @ overlaps[:, :, None])[:, :, 0]
        diagonal, pivot = rotated[:, j], np.hypot(np.abs(rotated[:, j]), below)
        largest = np.maximum(before, np.abs(np.diagonal(self._r, axis1=1, axis2=2)).max(1, initial=0.0))
        used = ~self.complete & (pivot > (j + 2) * np.finfo(np.float64).eps * largest)
        # For a column that is not used, swap its row with the one below: the residual stays the same.
        over = np.where(used, pivot, 1.0)
        cosine, sine = np.where(used, diagonal / over, 0.0), np.where(used, below / over, 1.0)
        self._r[:, :j, j] = np.where(used[:, None], rotated[:, :j], 0.0)
        self._r[:, j, j] = over
        self._rotations[:, j + 1, j + 1] = 1
        for values in (self._rotations, self._right[:, :, None]):
            upper, lower = values[:, j].copy(), values[:, j + 1].copy()
            c, s = cosine[:, None], sine[:, None]
            values[:, j], values[:, j + 1] = c.conj() * upper + s * lower, c * lower - s * upper
        self.complete = self.complete | ~used | (below <= _INVARIANT * before)
        self.columns += 1
        residuals: npt.NDArray[np.float64] = np.abs(self._right[:, j + 1])
        return residuals

    def solution(self) -> torch.Tensor:
        """Return the weights of the columns, (k, j), float64 or complex128."""
        j = self.columns
        right = torch.from_numpy(self._right[:, :j, None])
        y: torch.Tensor = torch.linalg.solve_triangular(
            torch.from_numpy(self._r[:, :j, :j]), right, upper=True
        )
        return y[:, :, 0]
