"""The field strength of a gauge field from clover leaves, and the clover term that is made of it.

Sheikholeslami and Wohlert, Improved continuum limit lattice action for QCD with Wilson fermions, 1985.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.complex128]

# gamma_mu = [[0, S], [S^+, 0]] in the chiral basis, for x, y, z, t; see kernels/reference/lattice/wilson.py.
_S = np.array([[[0, 1j], [1j, 0]], [[0, -1], [1, 0]], [[1j, 0], [0, -1j]], [[1, 0], [0, 1]]])


def field_strength(links: Array, mu: int, nu: int) -> Array:
    """Return F_mu,nu, Hermitian, (T, Z, Y, X, 3, 3), of links without the sign of a boundary.

    F = (Q - Q^+) / 8i, where Q is the sum of the four plaquettes that begin and end at a site and turn from
    mu to nu: the leaves of a clover.
    """
    u, v = links[mu], links[nu]

    def at(a: Array, *steps: tuple[int, int]) -> Array:
        """Return a as it is some steps along directions from here."""
        for direction, step in steps:
            a = np.roll(a, -step, 3 - direction)  # arrays have t first and x last
        return a

    def adjoint(a: Array) -> Array:
        return a.conj().swapaxes(-1, -2)

    up, left = (mu, 1), (nu, 1)
    down, right = (mu, -1), (nu, -1)
    leaves = (
        u @ at(v, up) @ adjoint(at(u, left)) @ adjoint(v),
        v @ adjoint(at(u, left, down)) @ adjoint(at(v, down)) @ at(u, down),
        adjoint(at(u, down)) @ adjoint(at(v, down, right)) @ at(u, down, right) @ at(v, right),
        adjoint(at(v, right)) @ at(u, right) @ at(v, right, up) @ adjoint(u),
    )
    q = sum(leaves[1:], leaves[0])
    strength: Array = (q - adjoint(q)) / 8j
    return strength


def clover_blocks(links: Array, csw: float, diagonal: float) -> Array:
    """Return diagonal + csw/2 sum over mu < nu of sigma_mu,nu F_mu,nu, (T, Z, Y, X, 2, 6, 6) complex128.

    sigma_mu,nu = [gamma_mu, gamma_nu] / 2i. In the chiral basis that is a Hermitian block for the upper two
    spins of each site and one for the lower two; rows and columns count spin before colour.
    """
    blocks = np.zeros((*links.shape[1:5], 2, 2, 3, 2, 3), np.complex128)
    for mu in range(4):
        for nu in range(mu + 1, 4):
            strength = field_strength(links, mu, nu)
            for chirality, s in enumerate((_S, _S.conj().swapaxes(1, 2))):
                other = s.conj().swapaxes(1, 2)
                sigma = (s[mu] @ other[nu] - s[nu] @ other[mu]) / 2j
                blocks[..., chirality, :, :, :, :] += (
                    0.5 * csw * np.einsum("st,...ij->...sitj", sigma, strength)
                )
    whole = blocks.reshape(*links.shape[1:5], 2, 6, 6)
    whole += diagonal * np.eye(6)
    return whole
