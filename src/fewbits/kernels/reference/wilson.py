"""The Wilson operator on a four-dimensional lattice, and how its links and spinors are kept narrow.

Clark et al., Solving Lattice QCD systems of equations using mixed precision solvers on GPUs, 2010. Spinors
are (T, Z, Y, X, 4, 3) complex, spin before colour; links are (4, T, Z, Y, X, 3, 3), the one in direction mu =
0, 1, 2, 3 (x, y, z, t) leading from its site to the next one that way. The lattice is periodic in all
directions.

Kernels compute in float32 what is defined here in float64, but that codes are the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

TOPS = {"int16": 32767, "int8": 127}  # what the code of 1, or of a site's largest magnitude, is
SMALLEST = 2.0**-100  # a site whose largest magnitude lies below is kept as zeros

# The chiral basis of DeGrand and Rossi: gamma_mu = [[0, S], [S^+, 0]], gamma_5 = diag(1, 1, -1, -1).
_S = np.array(
    [
        [[0, 1j], [1j, 0]],
        [[0, -1], [1, 0]],
        [[1j, 0], [0, -1j]],
        [[1, 0], [0, 1]],
    ]
)
GAMMAS = np.zeros((4, 4, 4), np.complex128)
GAMMAS[:, :2, 2:] = _S
GAMMAS[:, 2:, :2] = _S.conj().transpose(0, 2, 1)
GAMMA_5 = np.array([1.0, 1, -1, -1])


def wilson(links: Array, psi: Array, mass: float) -> Array:
    """Return M psi, complex128, of psi's shape.

    M psi(x) = (4 + m) psi(x) - 1/2 sum over mu of (1 - gamma_mu) U_mu(x) psi(x + mu)
    + (1 + gamma_mu) U_mu(x - mu)^+ psi(x - mu).
    """
    out = (4 + mass) * psi.astype(np.complex128)
    for mu in range(4):
        axis = 3 - mu  # arrays have t first and x last
        up = np.einsum("...ij,...sj->...si", links[mu], np.roll(psi, -1, axis))
        down = np.roll(np.einsum("...ji,...sj->...si", links[mu].conj(), psi), 1, axis)
        out -= 0.5 * (np.einsum("st,...tc->...sc", np.eye(4) - GAMMAS[mu], up))
        out -= 0.5 * (np.einsum("st,...tc->...sc", np.eye(4) + GAMMAS[mu], down))
    return out


def hermitian(links: Array, psi: Array, mass: float) -> Array:
    """Return H psi with H = gamma_5 M = H^+; M^+ M = H H."""
    return GAMMA_5[:, None] * wilson(links, psi, mass)


def compress(u: Array, numbers: int) -> Array:
    """Return ``numbers`` reals of each matrix, (..., numbers) float64; :func:`expand` makes it again.

    18 are the matrix, 12 its first two rows. 8 are those of the library QUDA, after Bunk and Sommer, An 8
    parameter representation of SU(3) matrices and its application for simulating lattice QCD, 1986: with a, b
    and c the second row, the first and minus the third, they are a2, a3 and b1, and the phases of a1 and c1
    over pi. This order keeps the unit matrix away from the place |a2|^2 + |a3|^2 = 0, where they do not
    determine the matrix.
    """
    if numbers != 8:
        rows = u.reshape(*u.shape[:-2], 9)[..., : numbers // 2]
        return np.ascontiguousarray(rows, np.complex128).view(np.float64)
    b, a, c = (u[..., i, :] for i in range(3))
    kept = np.stack([a[..., 1], a[..., 2], b[..., 0]], -1).astype(np.complex128).view(np.float64)
    angles = np.angle(np.stack([a[..., 0], -c[..., 0]], -1)) / np.pi
    return np.concatenate([kept, angles], -1)


def expand(kept: Array) -> Array:
    """Return the matrices, (..., 3, 3) complex128, of 18, 12 or 8 real numbers, (..., numbers)."""
    kept = np.ascontiguousarray(kept, np.float64)
    if kept.shape[-1] == 18:
        return kept.view(np.complex128).reshape(*kept.shape[:-1], 3, 3)
    if kept.shape[-1] == 12:
        a, b = np.moveaxis(kept.view(np.complex128).reshape(*kept.shape[:-1], 2, 3), -2, 0)
        return np.stack([a, b, np.cross(a, b).conj()], -2)
    z = np.ascontiguousarray(kept[..., :6]).view(np.complex128)
    a2, a3, b1 = np.moveaxis(z, -1, 0)
    phase_a, phase_c = np.moveaxis(np.exp(1j * np.pi * kept[..., 6:]), -1, 0)
    # Rounded numbers may lie outside of SU(3): what is left for a magnitude is then zero.
    n = np.abs(a2) ** 2 + np.abs(a3) ** 2
    a1 = np.sqrt(np.maximum(1 - n, 0)) * phase_a
    c1 = np.sqrt(np.maximum(n - np.abs(b1) ** 2, 0)) * phase_c
    over = 1 / np.maximum(n, 1e-30)
    b2 = -(a2 * a1.conj() * b1 + a3.conj() * c1.conj()) * over
    b3 = -(a3 * a1.conj() * b1 - a2.conj() * c1.conj()) * over
    c2, c3 = (a3 * b1 - a1 * b3).conj(), (a1 * b2 - a2 * b1).conj()
    return np.stack([np.stack(row, -1) for row in ((b1, b2, b3), (a1, a2, a3), (-c1, -c2, -c3))], -2)


def keep_links(numbers: Array, dtype: Any) -> Array:
    """Return real numbers from -1 to 1 as they are stored: floats, or rint(32767 u) or rint(127 u)."""
    top = TOPS.get(np.dtype(dtype).name)
    return (numbers if top is None else np.rint(np.clip(numbers, -1, 1) * top)).astype(dtype)


def kept_links(stored: Array) -> Array:
    """Return the real numbers, float64, that ``stored`` means."""
    return stored.astype(np.float64) / TOPS.get(stored.dtype.name, 1)


def keep_spinors(psi: Array, dtype: Any) -> tuple[Array, NDArray[np.float32] | None]:
    """Return float32 spinors, (..., 24) reals, as they are stored: codes of that shape and norms, (...).

    The norm is a site's largest magnitude over 32767 or 127, and a code the integer next to the value times
    32767 or 127 over that magnitude, ties to even; all of it in float32.
    """
    top = TOPS.get(np.dtype(dtype).name)
    if top is None:
        return psi.astype(dtype), None
    psi = psi.astype(np.float32)
    most = np.abs(psi).max(-1)
    most = np.where(most >= np.float32(SMALLEST), most, np.float32(0))
    with np.errstate(divide="ignore"):
        factor = np.where(most > 0, np.float32(top) / most, np.float32(0))
    return np.rint(psi * factor[..., None]).astype(dtype), most * (np.float32(1) / np.float32(top))


def kept_spinors(codes: Array, norms: NDArray[np.float32] | None) -> Array:
    """Return the values that stored spinors mean, in float32 for codes."""
    return codes if norms is None else codes.astype(np.float32) * norms[..., None]
