"""Memory layout of the links and spinors of a lattice: groups of 16 sites, links of 18, 12 or 8 numbers.

Spinors are (T, Z, Y, X, 4, 3) complex, spin before colour; links are (4, T, Z, Y, X, 3, 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.bits.memory import empty_aligned

Array = NDArray[Any]
Extent = tuple[int, int, int, int]  # groups along T, Z, Y and X

SITES, REALS, COLOUR_REALS = 16, 24, 6  # in a group; in a spinor; in a site of staggered fermions
BLOCK_REALS = 36  # of a Hermitian 6x6 matrix
INTEGER_MAX = {"int16": 32767, "int8": 127}  # the code of 1, or of the largest magnitude of a site


Parts = Sequence[Sequence[float]]
Total = Callable[[Parts], tuple[float, ...]]


def added(parts: Parts) -> tuple[float, ...]:
    """Return each sum, given as numbers that add up to it, rounded once; infinity or NaN beyond all."""
    return tuple(_sum(p) for p in parts)


def _sum(numbers: Sequence[float]) -> float:
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):  # infinity, or both of them, on the way
        return sum(numbers)


class Layout(NamedTuple):
    """Where the groups of a lattice lie, or of the part of one that a process holds.

    Attributes:
        extent: groups along T, Z, Y and X.
        split: axes along which the lattice goes on in other processes. Behind its groups a field then has
            two faces for each such axis, from T to X: the groups below the first ones, and those above the
            last ones.
        total: makes sums over all sites of numbers that add up to those of this process.
    """

    extent: Extent
    split: tuple[bool, bool, bool, bool] = (False, False, False, False)
    total: Total = added

    @property
    def groups(self) -> int:
        """How many groups there are, without faces."""
        return math.prod(self.extent)

    @property
    def stored(self) -> int:
        """How many groups a field has with its faces."""
        faces = (2 * self.groups // n for n, split in zip(self.extent, self.split, strict=True) if split)
        return self.groups + sum(faces)


class Field(NamedTuple):
    """A spinor for each site, or a colour vector of 6 numbers.

    Attributes:
        values: (groups, 24 or 6, 16), float64, float32, int16 or int8.
        norms: (groups, 16) float32 where values are integers, else None.
    """

    values: Array
    norms: NDArray[np.float32] | None = None


def zeros(groups: int, dtype: Any, reals: int = REALS) -> Field:
    """Return a field of zeros."""
    values = empty_aligned((groups, reals, SITES), np.dtype(dtype))
    values[:] = 0
    if values.dtype.kind != "i":
        return Field(values)
    norms = empty_aligned((groups, SITES), np.dtype(np.float32))
    norms[:] = 0
    return Field(values, norms)


def compress_links(u: Array, numbers: int) -> Array:
    """Return ``numbers`` reals for each matrix, (..., numbers) float64; :func:`expand_links` reverses it.

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
    reals = np.stack([a[..., 1], a[..., 2], b[..., 0]], -1).astype(np.complex128).view(np.float64)
    angles = np.angle(np.stack([a[..., 0], -c[..., 0]], -1)) / np.pi
    return np.concatenate([reals, angles], -1)


def expand_links(reals: Array) -> Array:
    """Return the matrices, (..., 3, 3) complex128, of 18, 12 or 8 real numbers, (..., numbers)."""
    reals = np.ascontiguousarray(reals, np.float64)
    if reals.shape[-1] == 18:
        return reals.view(np.complex128).reshape(*reals.shape[:-1], 3, 3)
    if reals.shape[-1] == 12:
        a, b = np.moveaxis(reals.view(np.complex128).reshape(*reals.shape[:-1], 2, 3), -2, 0)
        return np.stack([a, b, np.cross(a, b).conj()], -2)
    z = np.ascontiguousarray(reals[..., :6]).view(np.complex128)
    a2, a3, b1 = np.moveaxis(z, -1, 0)
    phase_a, phase_c = np.moveaxis(np.exp(1j * np.pi * reals[..., 6:]), -1, 0)
    # Rounded numbers may be outside SU(3); a squared magnitude below zero is then clamped to zero.
    n = np.abs(a2) ** 2 + np.abs(a3) ** 2
    a1 = np.sqrt(np.maximum(1 - n, 0)) * phase_a
    c1 = np.sqrt(np.maximum(n - np.abs(b1) ** 2, 0)) * phase_c
    over = 1 / np.maximum(n, 1e-30)
    b2 = -(a2 * a1.conj() * b1 + a3.conj() * c1.conj()) * over
    b3 = -(a3 * a1.conj() * b1 - a2.conj() * c1.conj()) * over
    c2, c3 = (a3 * b1 - a1 * b3).conj(), (a1 * b2 - a2 * b1).conj()
    return np.stack([np.stack(row, -1) for row in ((b1, b2, b3), (a1, a2, a3), (-c1, -c2, -c3))], -2)


def encode_links(numbers: Array, dtype: Any) -> Array:
    """Return real numbers from -1 to 1 as they are stored: floats, or rint(32767 u) or rint(127 u)."""
    top = INTEGER_MAX.get(np.dtype(dtype).name)
    return (numbers if top is None else np.rint(np.clip(numbers, -1, 1) * top)).astype(dtype)


def decode_links(codes: Array) -> Array:
    """Return the real numbers, float64, that ``codes`` mean."""
    return codes.astype(np.float64) / INTEGER_MAX.get(codes.dtype.name, 1)
