"""The staggered operator on a four-dimensional lattice: the definition.

Kogut and Susskind, Hamiltonian formulation of Wilson's lattice gauge theories, 1975. Colour vectors are (T,
Z, Y, X, 3) complex; links are as in :mod:`fewbits.kernels.reference.lattice.wilson`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.bits.lattice import INTEGER_MAX
from fewbits.kernels.reference.lattice.spinors import decode_spinors

Array = NDArray[Any]


def phases(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return eta_mu, (4, T, Z, Y, X): 1, (-1)^x, (-1)^(x + y) and (-1)^(x + y + z) for x, y, z and t."""
    _, z, y, x = np.indices(shape)
    return np.stack([np.ones_like(x), *((-1) ** (n % 2) for n in (x, x + y, x + y + z))])


def staggered(links: Array, chi: Array, mass: float) -> Array:
    """Return M chi, complex128, of chi's shape.

    M chi(n) = m chi(n) + 1/2 sum over mu of eta_mu(n) (U_mu(n) chi(n + mu) - U_mu(n - mu)^+ chi(n - mu)).
    """
    out = mass * chi.astype(np.complex128)
    eta = phases(chi.shape[:4])
    for mu in range(4):
        axis = 3 - mu  # arrays have t first and x last
        up = np.einsum("...ij,...j->...i", links[mu], np.roll(chi, -1, axis))
        down = np.roll(np.einsum("...ji,...j->...i", links[mu].conj(), chi), 1, axis)
        out += 0.5 * eta[mu][..., None] * (up - down)
    return out


def stored_hop(
    links: Array, codes: Array, norms: Array | None, own: Array, diagonal: float, hopping: float
) -> Array:
    """Return diagonal own - hopping sum over mu of eta_mu (U chi - U^+ chi) as kernels compute it.

    In float64 for float64, else in float32, each operation rounded, in this order.

    Args:
        links: (4, T, Z, Y, X, 18 or 12) as they are stored.
        codes: (T, Z, Y, X, 6), chi as it is stored.
        norms: (T, Z, Y, X) float32 for integers, else None.
        own: (T, Z, Y, X, 6), in the dtype of the arithmetic.
        diagonal: multiplies ``own``.
        hopping: multiplies the sum.
    """
    number = own.dtype.type
    one_code = number(1) / number(INTEGER_MAX.get(codes.dtype.name, 1))
    # The scale of a link is taken with the norm: its own numbers stay integers.
    chi = codes.astype(number) if norms is None else decode_spinors(codes, norms * one_code)
    parts = chi.reshape(*chi.shape[:4], 3, 2)
    v = (parts[..., 0], parts[..., 1])
    total_re, total_im = np.zeros_like(v[0]), np.zeros_like(v[0])
    eta = phases(chi.shape[:4]).astype(number)[..., None]
    for mu in range(4):
        axis = 3 - mu
        u = _matrices(links[mu].astype(number), one_code)
        up = _times(u, (np.roll(v[0], -1, axis), np.roll(v[1], -1, axis)), adjoint=False)
        down = [np.roll(part, 1, axis) for part in _times(u, v, adjoint=True)]
        for w, sign in ((up, eta[mu]), (down, -eta[mu])):
            total_re, total_im = total_re + sign * w[0], total_im + sign * w[1]
    total = np.stack([total_re, total_im], -1).reshape(own.shape)
    result: Array = number(diagonal) * own - number(hopping) * total
    return result


def _matrices(numbers: Array, one_code: Any) -> tuple[Array, Array]:
    """Return real and imaginary parts, (..., 3, 3), of 18 or 12 numbers in units of codes."""
    pairs = numbers.reshape(*numbers.shape[:-1], -1, 3, 2)
    re, im = pairs[..., 0], pairs[..., 1]
    if pairs.shape[-3] == 3:
        return re, im
    (a, b), (c, d) = (re[..., 0, :], re[..., 1, :]), (im[..., 0, :], im[..., 1, :])
    one, two = [1, 2, 0], [2, 0, 1]
    p, q = (a[..., one], c[..., one]), (b[..., two], d[..., two])
    r, s = (a[..., two], c[..., two]), (b[..., one], d[..., one])
    row_re = (p[0] * q[0] - p[1] * q[1]) - (r[0] * s[0] - r[1] * s[1])
    row_im = (r[0] * s[1] + r[1] * s[0]) - (p[0] * q[1] + p[1] * q[0])
    rows = [
        np.concatenate([old, new[..., None, :] * one_code], -2) for old, new in ((re, row_re), (im, row_im))
    ]
    return rows[0], rows[1]


def _times(u: tuple[Array, Array], h: tuple[Array, Array], *, adjoint: bool) -> tuple[Array, Array]:
    """Return U h, or U^+ h, with the three products of a row added from left to right."""
    re, im = (part.swapaxes(-1, -2) for part in u) if adjoint else u
    x, y = (part[..., None, :] for part in h)
    terms = (re * x + im * y, re * y - im * x) if adjoint else (re * x - im * y, re * y + im * x)
    sums = [term[..., 0] + term[..., 1] + term[..., 2] for term in terms]
    return sums[0], sums[1]
