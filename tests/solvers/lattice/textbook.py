"""Lattice fermions site by site, written from the formulas of a textbook, with none of the library's code.

Gattringer and Lang, Quantum Chromodynamics on the Lattice, 2010: (5.51) Wilson, (9.12) to (9.15) clover,
(10.16) staggered. Sites are (t, z, y, x); directions 0 to 3 are x, y, z, t. Spins are in the chiral basis of
DeGrand and Rossi, the library's.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

Site = tuple[int, ...]

X = np.array([[0, 1], [1, 0]], complex)
Y = np.array([[0, -1j], [1j, 0]])
Z = np.diag([1.0 + 0j, -1])


def off_diagonal(upper: Any) -> Any:
    return np.block([[np.zeros((2, 2)), upper], [upper.conj().T, np.zeros((2, 2))]])


# gamma_x, y, z, t: i sigma_1, -i sigma_2, i sigma_3 and 1 above the diagonal.
GAMMAS = [off_diagonal(s) for s in (1j * X, -1j * Y, 1j * Z, np.eye(2))]


class Field:
    """Links with a boundary: U(site, mu, sign) is the link that leads from a site along +mu or -mu."""

    def __init__(self, links: Any, boundary: tuple[int, ...] = (1, 1, 1, 1)) -> None:
        self.links, self.boundary, self.shape = links, boundary, links.shape[1:5]

    def next(self, site: Site, mu: int, sign: int) -> tuple[Site, int]:
        """Return the neighbour, and the sign of a spinor that is carried there."""
        axis = 3 - mu
        moved = list(site)
        moved[axis] += sign
        crossed = self.boundary[axis] if not 0 <= moved[axis] < self.shape[axis] else 1
        moved[axis] %= self.shape[axis]
        return tuple(moved), crossed

    def link(self, site: Site, mu: int, sign: int) -> Any:
        if sign > 0:
            return self.links[(mu, *site)]
        return self.links[(mu, *self.next(site, mu, -1)[0])].conj().T

    def sites(self) -> Any:
        return product(*map(range, self.shape))

    def path(self, site: Site, steps: tuple[tuple[int, int], ...]) -> Any:
        """Return the product of the links along a path."""
        u = np.eye(3, dtype=complex)
        for mu, sign in steps:
            u = u @ self.link(site, mu, sign)
            site, _ = self.next(site, mu, sign)
        return u


def wilson(field: Field, psi: Any, mass: float) -> Any:
    out = np.zeros(psi.shape, complex)
    for n in field.sites():
        out[n] = (mass + 4) * psi[n]
        for mu, sign in product(range(4), (1, -1)):
            there, crossed = field.next(n, mu, sign)
            spin = np.eye(4) - sign * GAMMAS[mu]
            out[n] -= 0.5 * crossed * spin @ (psi[there] @ field.link(n, mu, sign).T)
    return out


def strength(field: Field, n: Site, mu: int, nu: int, leaf_sign: int = 1) -> Any:
    """Return F_mu,nu = -i/8 (Q_mu,nu - Q_nu,mu); ``leaf_sign`` turns one leaf around, which is wrong."""

    def leaves(a: int, b: int) -> Any:
        total = np.zeros((3, 3), complex)
        for number, ((d, s), (e, r)) in enumerate(
            (((a, 1), (b, 1)), ((b, 1), (a, -1)), ((a, -1), (b, -1)), ((b, -1), (a, 1)))
        ):
            leaf = field.path(n, ((d, s), (e, r), (d, -s), (e, -r)))
            total += leaf_sign * leaf if number == 2 else leaf
        return total

    return -1j / 8 * (leaves(mu, nu) - leaves(nu, mu))


def clover(field: Field, psi: Any, mass: float, csw: float, leaf_sign: int = 1) -> Any:
    out = wilson(field, psi, mass)
    for n in field.sites():
        for mu in range(4):
            for nu in range(mu + 1, 4):
                sigma = (GAMMAS[mu] @ GAMMAS[nu] - GAMMAS[nu] @ GAMMAS[mu]) / 2j
                f = strength(field, n, mu, nu, leaf_sign)
                out[n] += csw * 0.5 * sigma @ psi[n] @ f.T
    return out


def eta(n: Site, mu: int) -> int:
    """Return the staggered phase: (-1) to the sum of the coordinates before mu, in the order x, y, z, t."""
    _, z, y, x = n
    return (-1) ** sum((x, y, z)[:mu])


def staggered(
    field: Field, chi: Any, mass: float, phase: Callable[[Site, int], int] = eta, back: int = -1
) -> Any:
    out = np.zeros(chi.shape, complex)
    for n in field.sites():
        out[n] = mass * chi[n]
        for mu in range(4):
            for sign, weight in ((1, 1), (-1, back)):
                there, crossed = field.next(n, mu, sign)
                out[n] += 0.5 * weight * phase(n, mu) * crossed * field.link(n, mu, sign) @ chi[there]
    return out


def matrix(apply: Callable[[Any], Any], shape: tuple[int, ...]) -> Any:
    """Return the dense matrix of a linear map on fields of a shape."""
    size = int(np.prod(shape))
    return np.stack([apply(e.reshape(shape)).reshape(-1) for e in np.eye(size, dtype=complex)], 1)
