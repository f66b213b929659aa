"""Conjugate gradients on a 7-point stencil with narrow vectors: the definition of both passes.

Numbers are rounded as they are stored, arithmetic is float32 (float64 where the vectors are), each operation
rounded by itself, and sums of products are float64.

16-bit integers: Clark et al., Solving Lattice QCD systems of equations using mixed precision solvers on GPUs,
2010, section 4, with a norm for each 32 numbers of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.stored import SITE, Stored

Array = NDArray[Any]

LARGEST_INTEGER, LARGEST_HALF = np.float32(32767), np.float32(65504)
SMALLEST_NORM = np.float32(2.0**-100)  # a block of smaller numbers is zero


@dataclass(frozen=True)
class Grid:
    """y = sum over the six faces of face * (x here - x there) + shift * x, zero outside.

    Attributes:
        nx: cells in a row; what lies beyond is zero.
        x, y, z: faces below each cell: (nz, ny, stride), (nz, ny + 1, stride), (nz + 1, ny, stride).
        high: (nz, ny) float64, the faces above the last cells in x.
        shift: added to the diagonal.
    """

    nx: int
    x: Stored
    y: Stored
    z: Stored
    high: NDArray[np.float64]
    shift: float


def load(s: Stored) -> Array:
    """Return the numbers, float64 or float32."""
    if s.storage in ("f64", "f32"):
        return s.values.copy()
    if s.storage == "f16":
        return s.values.astype(np.float32) * np.float32(s.scale)
    assert s.norms is not None
    found = s.values.astype(np.float32).reshape(*s.norms.shape, SITE) * s.norms[..., None]
    return found.reshape(s.values.shape)


def store(s: Stored, v: Array) -> Array:
    """Store ``v``, and return what :func:`load` then gives."""
    if s.storage in ("f64", "f32"):
        s.values[...] = v
    elif s.storage == "f16":
        over = np.float32(1) / np.float32(s.scale)
        s.values[...] = np.clip(v * over, -LARGEST_HALF, LARGEST_HALF)  # rounds to nearest even
    else:
        assert s.norms is not None
        blocks = v.reshape(*s.norms.shape, SITE)
        largest = np.abs(blocks).max(-1)
        there = largest >= SMALLEST_NORM
        safe = np.where(there, largest, np.float32(1))
        s.norms[...] = np.where(there, safe / LARGEST_INTEGER, np.float32(0))
        steps = np.where(there, LARGEST_INTEGER / safe, np.float32(0))
        s.values[...] = np.rint(blocks * steps[..., None]).reshape(v.shape)
    return load(s)


def turn(
    a: Grid,
    r: Stored,
    p: Stored,
    following: Stored,
    q: Stored,
    x: Array | None,
    alpha: float,
    earlier: float,
    gamma: float,
    beta: float,
) -> tuple[float, float, float]:
    """Let x += alpha p + earlier p', p' = gamma r + beta p, q = A p'; return the sums p'.q, p'.p' and q.q.

    x is left alone where both of its factors are zero. Without x, neither p nor p' is touched: q = gamma A r.
    """
    old = load(p)
    real = old.dtype.type
    if x is None:
        new = real(gamma) * load(r)
        image = store(q, apply(a, new))
        return _dot(new, image), _dot(new, new), _dot(image, image)
    if alpha != 0 or earlier != 0:
        x += real(alpha) * old + real(earlier) * load(following)
    new = store(following, real(gamma) * load(r) + real(beta) * old)
    image = store(q, apply(a, new))
    return _dot(new, image), _dot(new, new), _dot(image, image)


def advance(r: Stored, q: Stored, r_scale: float, alpha: float) -> tuple[float, float]:
    """Let r -= alpha q, stored with ``r_scale``; return the sums r.r and r . r before."""
    before = load(r)
    r.scale = r_scale
    new = store(r, before - before.dtype.type(alpha) * load(q))
    return _dot(new, new), _dot(new, before)


def pack(values: NDArray[np.float64], to: Stored, p: Stored) -> tuple[float, float]:
    """Store values, (nz, ny, nx); return the sums v.v and v.p of what was stored."""
    padded = np.zeros(to.values.shape, load(p).dtype)
    padded[..., : values.shape[-1]] = values
    v = store(to, padded)
    return _dot(v, v), _dot(v, load(p))


def apply(a: Grid, v: Array) -> Array:
    """Return A v, (nz, ny, stride) of v's dtype."""
    real = v.dtype.type
    around = np.pad(v, 1)
    here = around[1:-1, 1:-1, 1:-1]
    fx = np.pad(load(a.x), ((0, 0), (0, 0), (0, 1)))
    fx[..., a.nx] = a.high
    fy, fz = load(a.y), load(a.z)
    x = fx[..., :-1] * (here - around[1:-1, 1:-1, :-2]) + fx[..., 1:] * (here - around[1:-1, 1:-1, 2:])
    y = fy[:, :-1] * (here - around[1:-1, :-2, 1:-1]) + fy[:, 1:] * (here - around[1:-1, 2:, 1:-1])
    z = fz[:-1] * (here - around[:-2, 1:-1, 1:-1]) + fz[1:] * (here - around[2:, 1:-1, 1:-1])
    found: Array = ((x + y) + z) + real(a.shift) * here
    found[..., a.nx :] = 0
    return found


def _dot(u: Array, v: Array) -> float:
    return float((u * v).astype(np.float64).sum())
