"""The Wilson operator on a four-dimensional lattice: the definition.

Clark et al., Solving Lattice QCD systems of equations using mixed precision solvers on GPUs, 2010. Spinors
are (T, Z, Y, X, 4, 3) complex, spin before colour; links are (4, T, Z, Y, X, 3, 3), the one in direction mu =
0, 1, 2, 3 (x, y, z, t) leading from its site to the next one that way. The lattice is periodic in all
directions.

The compiled kernels compute in float32 what is defined here in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

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


def even_sites(shape: tuple[int, ...]) -> Array:
    """Return which sites of a lattice (T, Z, Y, X) are even: t + z + y + x is."""
    even: Array = np.indices(shape).sum(0) % 2 == 0
    return even


def schur(links: Array, psi: Array, mass: float) -> Array:
    """Return (a - D_eo D_oe / (4 a)) psi on even sites and zeros on odd ones, with a = 4 + mass.

    M is [[a, -D_eo / 2], [-D_oe / 2, a]] on even and odd sites; this is its Schur complement (DeGrand
    and Rossi, Conditioning techniques for dynamical fermions, 1990). All axes have even sizes.
    """
    even = even_sites(psi.shape[:4])[..., None, None]
    a = 4 + mass
    hop = np.where(even, 0, wilson(links, np.where(even, psi, 0), mass))  # - D_oe psi / 2
    back = np.where(even, wilson(links, hop / a, mass), 0)  # D_eo D_oe psi / (4 a)
    return np.where(even, a * psi, 0) - back
