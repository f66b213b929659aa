"""Dense matrices: residuals and magnitudes in double precision, LU factors, triangular systems."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels import native
from fewbits.kernels.arrays.threads import threads

Doubles = NDArray[np.float64]


def empty(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an uninitialized array in memory that is kept for the next one when it is gone."""
    return native.empty_kept(shape, dtype)


def residuals(a: Doubles, x: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """Return b - A x and |A| |x| + |b|, as :mod:`fewbits.kernels.reference.dense.residuals` defines them.

    Args:
        a: (m, n).
        x: (k, n), a vector in each row.
        b: (k, m), likewise.

    Returns:
        Both (k, m). The residual is rounded once from an arithmetic of about 106 bits.
    """
    return native.residuals(a, x, b, threads())


def extents(
    a: Doubles, single: NDArray[np.float32] | None = None, powers: tuple[Doubles, Doubles] | None = None
) -> tuple[Doubles, Doubles, Doubles]:
    """Return the largest magnitude and the sum of magnitudes of each row, and the largest of each column.

    Args:
        a: (m, n).
        single: (m, n), takes the values as float32, since A is being read.
        powers: (m,) and (n,), the diagonals of R and C, powers of two; all of this is then of R A C.

    Returns:
        (m,), (m,) and (n,) float64.
    """
    return native.extents(a, threads(), single, powers)


def factorize_lu(a: NDArray[np.float32] | Doubles) -> NDArray[np.int64]:
    """Factorize P A = L U in place, as :mod:`fewbits.kernels.reference.dense.lu` defines it.

    Args:
        a: (m, n), m >= n, overwritten by U and, below the diagonal, L without its ones.

    Returns:
        (n,), the row that changed places with row i before column i was eliminated. The factors do not depend
        on the number of threads; |P A - L U| is within the bound of the definition's.
    """
    return native.factorize_lu(a, threads())


def exchange_rows(a: NDArray[np.float32], exchanges: NDArray[np.int64]) -> None:
    """Have row i of ``a``, (m, n), and row ``exchanges[i]`` change places, one after the other.

    Args:
        a: the values of each row side by side.
        exchanges: (count,), count <= m, as :func:`factorize_lu` returns them.
    """
    native.exchange_rows(a, exchanges, threads())


def substitute(
    t: NDArray[np.float32] | Doubles, x: Doubles, *, upper: bool, unit: bool = False, transposed: bool = False
) -> None:
    """Solve T x = b in place, as :mod:`fewbits.kernels.reference.dense.triangles` defines it.

    Args:
        t: (n, n); T is its lower or upper triangle.
        x: (k, n), the right-hand sides in its rows, overwritten by the solutions.
        upper: whether T is the upper triangle.
        unit: whether the diagonal of T is ones, whatever ``t`` holds there.
        transposed: whether the system is that of T transposed.
    """
    native.substitute(t, x, threads(), upper=upper, unit=unit, transposed=transposed)
