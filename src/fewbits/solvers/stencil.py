"""Symmetric 7-point stencils with variable coefficients, with kernels of their own."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from fewbits.errors import ArgumentError, DataError
from fewbits.formats import Format
from fewbits.kernels.arrays.stencil import StencilPasses, stencil_passes
from fewbits.kernels.bits.memory import empty_aligned
from fewbits.kernels.bits.stencil import SITE, Grid, ScaledArray, store, stride_of, zeros
from fewbits.solvers.operators import Apply, Operator
from fewbits.solvers.precision import KrylovPrecision
from fewbits.tensor import fake_quantize
from fewbits.tensor import format as read

# Formats that have kernels, and how they lie in memory.
_STORAGES = {
    "block(element=fp16,scale=e8m0,size=tensor)": "f16",
    "block(element=int(16,coding=symmetric),scale=fp32,size=32)": "i16",
}

# Vectors and faces that the kernels hold together.
_SERVED = {
    ("f64", "f64"),
    ("f32", "f32"),
    ("f16", "f32"),
    ("f16", "f16"),
    ("f16", "i16"),
    ("i16", "f32"),
    ("i16", "i16"),
}

Array = NDArray[np.float64]


class Stencil(Operator):
    """y = sum over the six faces of a cell of face * (x here - x there) + shift * x; zero outside the grid.

    Unknowns are numbered with x running fastest.

    Args:
        x: (nz, ny, nx + 1) float64, the coefficients of the faces across x, from the lower boundary to the
            upper one.
        y: (nz, ny + 1, nx).
        z: (nz + 1, ny, nx).
        shift: added to the diagonal.

    Raises:
        ArgumentError: shapes that do not fit each other, or rows of more than 4,096 cells.
        DataError: NaN or infinity.
    """

    symmetric = True
    preferred = "scaled-fp16"

    def __init__(self, x: Any, y: Any, z: Any, shift: float = 0.0) -> None:
        faces = [np.ascontiguousarray(f, np.float64) for f in (x, y, z)]
        shapes = [f.shape for f in faces]
        if any(len(s) != 3 for s in shapes) or not _fit(*shapes):
            raise ArgumentError(
                f"faces have the shapes {shapes}; expected (nz, ny, nx + 1), (nz, ny + 1, nx) and"
                " (nz + 1, ny, nx)"
            )
        if not all(np.isfinite(f).all() for f in faces) or not math.isfinite(shift):
            raise DataError("A holds NaN or infinity; remove them first")
        self.shape = (shapes[0][0], shapes[0][1], shapes[1][2])
        if self.shape[2] > 4096:
            raise ArgumentError(f"rows of {self.shape[2]} cells; at most 4096 fit. Turn the grid")
        self.n, self.shift = math.prod(self.shape), float(shift)
        self.stride = stride_of(self.shape[2])
        self._high = faces[0][..., -1].copy()
        self._faces = [self._padded(f) for f in (faces[0][..., :-1], faces[1], faces[2])]
        self._wide = self.grid("f64", None)
        self._passes = stencil_passes(self._wide)

    @classmethod
    def poisson(cls, k: Any, shift: float = 0.0) -> Stencil:
        """Return -div(k grad u) + shift u with zero outside, for k, (nz, ny, nx), positive.

        A face has the harmonic mean of its two cells, one at the boundary its cell's.
        """
        k = np.asarray(k, np.float64)
        if k.ndim != 3 or not (k > 0).all():
            raise ArgumentError(f"k has the shape {k.shape}; expected (nz, ny, nx) of positive coefficients")
        around = np.pad(k, 1, mode="edge")
        inner = (slice(1, -1),) * 3

        def faces(axis: int) -> Array:
            low, high = list(inner), list(inner)
            low[axis], high[axis] = slice(None, -1), slice(1, None)
            a, b = around[tuple(low)], around[tuple(high)]
            found: Array = 2 * a * b / (a + b)
            return found

        return cls(faces(2), faces(1), faces(0), shift)

    def grid(self, storage: str, matrix: Format | None) -> Grid:
        """Return the faces as the kernels read them, rounded to ``matrix`` first if that is given."""
        wide = "f64" if storage == "f64" else "f32"
        held = []
        for faces in self._faces:
            values: Any = faces if wide == "f64" else faces.astype(np.float32)
            if matrix is not None:
                values = fake_quantize(values, matrix)
            stored = zeros(faces.shape, storage)
            stored.scale = _unit(float(np.abs(values).max()) / 2**12)
            store(stored, values)
            held.append(stored)
        high = self._high if matrix is None else fake_quantize(self._high, matrix)
        x, y, z = held
        return Grid(self.shape[2], x, y, z, np.ascontiguousarray(high, np.float64), self.shift)

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return A v; see :class:`Operator`."""
        return _apply(self._passes, self._wide, "f64", v.to(torch.float64))

    def narrowed(self, matrix: Format | None) -> Apply:
        """Return the cheap product; see :class:`Operator`."""
        grid = self.grid("f32", matrix)
        passes = stencil_passes(grid)
        return lambda v: _apply(passes, grid, "f32", v.to(torch.float32))

    def shifted(self, shift: float) -> Stencil:
        """Return A + shift, a stencil again; the faces are shared."""
        found = copy.copy(self)
        found.shift = self.shift + shift
        found._wide = dataclasses.replace(self._wide, shift=found.shift)
        found._passes = stencil_passes(found._wide)
        return found

    def scaled(self, exponent: int) -> Stencil:
        """Return A 2^exponent, a stencil again.

        Raises:
            DataError: a coefficient would lose digits.
        """
        found = copy.copy(self)
        with np.errstate(under="ignore"):
            found._faces = [np.ldexp(f, exponent) for f in self._faces]
            found._high = np.ldexp(self._high, exponent)
        for one, of in zip((*found._faces, found._high), (*self._faces, self._high), strict=True):
            if not np.array_equal(np.ldexp(one, -exponent), of):
                raise DataError("A holds coefficients more than 1e300 apart; scale it first")
        found.shift = math.ldexp(self.shift, exponent)
        found._wide = found.grid("f64", None)
        found._passes = stencil_passes(found._wide)
        return found

    def magnitude(self) -> float:
        """Return :meth:`largest`."""
        return self.largest()

    def engine(self, precision: KrylovPrecision) -> StencilEngine | None:
        """Return vectors in the kernels of the stencil, where they have the formats."""
        vectors, faces = _storage(precision.vectors), _storage(precision.matrix)
        if vectors is None or faces is None or (vectors, faces) not in _SERVED:
            return None
        return StencilEngine(self, vectors, faces)

    def largest(self) -> float:
        """Return a bound on |A|: twice the largest sum of the faces of a cell, and the shift."""
        x, y, z = (np.abs(f).max() for f in self._faces)
        return float(4 * (max(x, np.abs(self._high).max()) + y + z) + abs(self.shift))

    def to_scipy(self) -> Any:
        """Return the matrix as a SciPy array of compressed rows, float64."""
        _, ny, nx = self.shape
        x, y, z = (f[..., :nx] for f in self._faces)
        high = np.zeros(self.shape)
        high[..., -1] = self._high
        here = x + np.concatenate([x[..., 1:], high[..., -1:]], 2) + y[:, :-1] + y[:, 1:] + z[:-1] + z[1:]
        inner = x.copy(), y[:, :-1].copy(), z[:-1].copy()
        inner[0][..., 0], inner[1][:, 0], inner[2][0] = 0, 0, 0
        shape = (self.n, self.n)
        found = scipy.sparse.diags_array(here.ravel() + self.shift, shape=shape).tocsr()
        for faces, step in zip(inner, (1, nx, nx * ny), strict=True):
            if step < self.n:
                below = -faces.ravel()[step:]
                found = found + scipy.sparse.diags_array([below, below], offsets=[-step, step], shape=shape)
        found = found.tocsr()
        found.eliminate_zeros()
        return found

    def _padded(self, faces: Array) -> Array:
        found = np.zeros((*faces.shape[:2], self.stride))
        found[..., : faces.shape[2]] = faces
        return found


class StencilEngine:
    """Vectors that lie packed; see :class:`fewbits.solvers.krylov.engine.Engine`.

    x += alpha p waits for a pass over p: x is read and written every second time, together with the direction
    before, which still lies where the next one goes.
    """

    def __init__(self, a: Stencil, vectors: str, faces: str) -> None:
        self.a, self.vectors = a, vectors
        self.grid = a.grid(faces, None) if faces != "f64" else a._wide
        self.passes = stencil_passes(self.grid)
        shape = (*a.shape[:2], a.stride)
        self.r, self.p, self.following, self.q = (zeros(shape, vectors) for _ in range(4))
        self.x = zeros(shape, "f64" if vectors == "f64" else "f32").values
        self.total = torch.from_numpy(empty_aligned(a.shape, np.float64))
        self.alpha = self.earlier = 0.0  # what x still waits for: of p, and of `following`
        self.rr = self.pp = 0.0
        self.gain = a.largest()  # |q| / |p|, last seen

    def load(self, r: torch.Tensor) -> tuple[float, float, float]:
        """Take r and zero for x."""
        self.x.fill(0)
        self.alpha = self.earlier = 0.0
        self.r.scale = self._scale(float(torch.linalg.vector_norm(r)))
        values = r.reshape(self.a.shape).contiguous().numpy()
        self.rr, rp = self.passes.pack(values, self.r, self.p)
        return self.rr, self.rr, rp

    def turn(self, gamma: float, beta: float) -> tuple[float, float]:
        """Let p = gamma r + beta p, and compute A p."""
        length = math.sqrt(gamma * gamma * self.rr + beta * beta * self.pp)
        before = self.following.scale
        self.following.scale, self.q.scale = self._scale(length), self._scale(self.gain * length)
        parts = (self.r, self.p, self.following, self.q)
        # What lies in `following` is read with its new scale; both are powers of two.
        earlier = self.earlier * before / self.following.scale
        paid = (self.alpha, earlier) if earlier != 0 else (0.0, 0.0)
        pq, self.pp, qq = self.passes.update_direction(*parts, self.x, *paid, gamma, beta)
        self.p, self.following = self.following, self.p
        self.alpha, self.earlier = 0.0, self.alpha - paid[0]
        self.gain = math.sqrt(qq / self.pp) if self.pp > 0 else self.gain
        return pq, self.pp

    def advance(self, alpha: float) -> tuple[float, float, float]:
        """Let x += alpha p and r -= alpha A p."""
        self.alpha = alpha
        self.rr, mixed = self.passes.update_residual(self.r, self.q, self._scale(math.sqrt(self.rr)), alpha)
        return self.rr, self.rr, mixed

    def partial(self) -> torch.Tensor:
        """Return x; the next call writes over it."""
        # Plane by plane into one array: fresh memory of this size costs more than the arithmetic.
        for z, plane in enumerate(self.total):
            x = torch.from_numpy(self.x[z])
            for factor, p in ((self.alpha, self.p), (self.earlier, self.following)):
                if factor != 0:
                    x = torch.add(x, self._plane(p, z), alpha=factor)
            plane.copy_(x[:, : self.a.shape[2]])
        return self.total.view(-1)

    def _plane(self, v: ScaledArray, z: int) -> torch.Tensor:
        """Return a plane of ``v`` as it is stored; kernels.bits.stencil.load, on all threads."""
        p = torch.from_numpy(v.values[z])
        if self.vectors in ("f64", "f32"):
            return p
        if v.norms is None:
            return p.float().mul_(v.scale)
        norms = torch.from_numpy(v.norms[z])
        return p.float().view(*norms.shape, SITE).mul_(norms[..., None]).view(p.shape)

    def _scale(self, length: float) -> float:
        """Return a unit for a vector of that length: no value can be beyond 2^15 times it."""
        return _unit(length / math.sqrt(self.a.n)) if self.vectors == "f16" else 1.0


def _apply(passes: StencilPasses, grid: Grid, storage: str, v: torch.Tensor) -> torch.Tensor:
    nz, ny, stride = grid.x.values.shape
    given = v.reshape(nz, ny, grid.nx).contiguous().numpy()
    if stride == grid.nx:
        r = ScaledArray(storage, given)
    else:
        r = zeros((nz, ny, stride), storage)
        r.values[..., : grid.nx] = given
    q = ScaledArray(storage, empty_aligned((nz, ny, stride), given.dtype))  # written whole
    passes.update_direction(r, q, r, q, None, 0.0, 0.0, 1.0, 0.0)
    return torch.from_numpy(q.values)[..., : grid.nx].reshape(-1)


def _storage(fmt: str) -> str | None:
    plain = {"fp64": "f64", "fp32": "f32"}
    return plain.get(fmt) or _STORAGES.get(read(fmt).grammar)


def _unit(size: float) -> float:
    """Return the power of two at or below ``size``, within float32's range."""
    return 2.0 ** max(-100, min(100, math.floor(math.log2(size)))) if size > 0 else 1.0


def _fit(x: tuple[int, ...], y: tuple[int, ...], z: tuple[int, ...]) -> bool:
    nz, ny, nx = x[0], x[1], y[2]
    return min(nx, ny, nz) > 0 and (x, y, z) == ((nz, ny, nx + 1), (nz, ny + 1, nx), (nz + 1, ny, nx))
