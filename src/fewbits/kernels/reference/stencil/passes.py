"""Conjugate gradients on a 7-point stencil with narrow vectors: the definition of both passes.

Numbers are rounded as they are stored, arithmetic is float32 (float64 where the vectors are), each operation
rounded by itself; products of two vectors and their sums are float64.

16-bit integers: Clark et al., Solving Lattice QCD systems of equations using mixed precision solvers on GPUs,
2010, section 4, with a norm for each 32 numbers of a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.bits.stencil import Grid, ScaledArray, load, store

Array = NDArray[Any]


def update_direction(
    a: Grid,
    r: ScaledArray,
    p: ScaledArray,
    following: ScaledArray,
    q: ScaledArray,
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


def update_residual(r: ScaledArray, q: ScaledArray, r_scale: float, alpha: float) -> tuple[float, float]:
    """Let r -= alpha q, stored with ``r_scale``; return the sums r.r and r . r before."""
    before = load(r)
    r.scale = r_scale
    new = store(r, before - before.dtype.type(alpha) * load(q))
    return _dot(new, new), _dot(new, before)


def pack(values: NDArray[np.float64], to: ScaledArray, p: ScaledArray) -> tuple[float, float]:
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
    return float((u.astype(np.float64) * v).sum())
