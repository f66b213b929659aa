"""The hopping part of staggered fermions as a sparse matrix, with its phases and links rounded or not."""

from __future__ import annotations

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

Array = NDArray[np.complex128]


def parity(shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return which sites of a lattice (T, Z, Y, X) are even, in natural order."""
    even: NDArray[np.bool_] = np.indices(shape).sum(0).reshape(-1) % 2 == 0
    return even


def phases(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return eta_mu, (4, T, Z, Y, X): 1, (-1)^x, (-1)^(x + y) and (-1)^(x + y + z) for x, y, z and t."""
    _, z, y, x = np.indices(shape)
    return np.stack([np.ones_like(x), *((-1) ** (n % 2) for n in (x, x + y, x + y + z))])


def hopping(links: Array) -> scipy.sparse.csr_array:
    """Return D, antihermitian, on colour vectors in natural order, (3 sites, 3 sites) complex128.

    D chi(n) = 1/2 sum over mu of eta_mu(n) (U_mu(n) chi(n + mu) - U_mu(n - mu)^+ chi(n - mu)), links with the
    signs of the boundary.
    """
    shape = links.shape[1:5]
    sites = np.arange(int(np.prod(shape))).reshape(shape)
    eta = phases(shape)
    up = scipy.sparse.csr_array((3 * sites.size, 3 * sites.size), dtype=np.complex128)
    for mu in range(4):
        there = np.roll(sites, -1, 3 - mu).reshape(-1)  # arrays have t first and x last
        blocks = (0.5 * eta[mu][..., None, None] * links[mu]).reshape(-1, 3, 3)
        starts = np.arange(sites.size + 1)
        up = up + scipy.sparse.bsr_array((blocks, there, starts), shape=up.shape).tocsr()
    return scipy.sparse.csr_array(up - up.conj().T)
