"""Symmetric 7-point stencils with variable coefficients, with kernels of their own."""

from __future__ import annotations

import copy
import dataclasses
import math

import numpy as np
import scipy.sparse
import torch
from numpy.typing import ArrayLike, NDArray

from fewbits.errors import ArgumentError, DataError
from fewbits.formats import SCALED_FP16, SITE_INT16, Format
from fewbits.kernels.arrays.stencil import StencilPasses, serves, stencil_passes
from fewbits.kernels.bits.memory import empty_aligned
from fewbits.kernels.bits.stencil import Grid, ScaledArray, store, stride_of, zeros
from fewbits.solvers.operators.cg_vectors import CGVectors
from fewbits.solvers.operators.operator import Apply, Operator
from fewbits.solvers.operators.stencil_vectors import StencilVectors, power_below
from fewbits.solvers.operators.vectors import real_array, real_number
from fewbits.solvers.precision import KrylovPrecision
from fewbits.tensor import fake_quantize
from fewbits.tensor import format as read
from fewbits.typing import NumpyArray

# Formats that have kernels, with their storage in memory.
_STORAGES: dict[Format, str] = {
    SCALED_FP16: "f16",
    SITE_INT16: "i16",
}

Array = NDArray[np.float64]


class Stencil(Operator):
    """y = sum over the six faces of a cell of face * (x - x of the neighbour) + shift * x; x is zero outside.

    Unknowns are numbered with x running fastest.

    Args:
        x: (nz, ny, nx + 1) float64, the coefficients of the faces across x, from the lower boundary to the
            upper one.
        y: (nz, ny + 1, nx).
        z: (nz + 1, ny, nx).
        shift: added to the diagonal.

    Raises:
        ArgumentError: shapes that do not fit each other, rows of more than 4,096 cells, what is not real
            numbers, or a shift that is not finite.
        DataError: NaN or infinity among the coefficients.
    """

    symmetric = True
    preferred = "scaled_fp16"

    def __init__(self, x: ArrayLike, y: ArrayLike, z: ArrayLike, shift: float = 0.0) -> None:
        faces = [real_array(f, name) for f, name in ((x, "x"), (y, "y"), (z, "z"))]
        self.shift = real_number(shift)
        if not math.isfinite(self.shift):
            raise ArgumentError(f"shift={shift!r}; expected a finite real number")
        shapes = [f.shape for f in faces]
        if any(len(s) != 3 for s in shapes) or not _fit(*shapes):
            raise ArgumentError(
                f"faces have the shapes {shapes}; expected (nz, ny, nx + 1), (nz, ny + 1, nx) and"
                " (nz + 1, ny, nx)"
            )
        if not all(np.isfinite(f).all() for f in faces):
            raise DataError("A holds NaN or infinity; remove them first")
        self.shape = (shapes[0][0], shapes[0][1], shapes[1][2])
        if self.shape[2] > 4096:
            raise ArgumentError(f"rows of {self.shape[2]} cells; at most 4096 fit. Turn the grid")
        self.n = math.prod(self.shape)
        self.stride = stride_of(self.shape[2])
        self._high = faces[0][..., -1].copy()
        self._faces = [self._padded(f) for f in (faces[0][..., :-1], faces[1], faces[2])]
        self._wide = self.grid("f64", None)
        self._passes = stencil_passes(self._wide)

    @classmethod
    def poisson(cls, k: ArrayLike, shift: float = 0.0) -> Stencil:
        """Return -div(k grad u) + shift u with zero outside, for k, (nz, ny, nx), positive.

        The coefficient of a face is the harmonic mean of k in its two cells; at the boundary it is that of
        the one cell.
        """
        k = real_array(k, "k")
        if k.ndim != 3 or not k.size or not (k > 0).all():
            raise ArgumentError(f"k has the shape {k.shape}; expected (nz, ny, nx) of positive coefficients")
        around = np.pad(k, 1, mode="edge")
        inner = (slice(1, -1),) * 3

        def faces(axis: int) -> Array:
            low, high = list(inner), list(inner)
            low[axis], high[axis] = slice(None, -1), slice(1, None)
            a, b = around[tuple(low)], around[tuple(high)]
            least, largest = np.minimum(a, b), np.maximum(a, b)
            mean: Array = least * (2 / (1 + least / largest))  # a product a b may leave the range
            return mean

        return cls(faces(2), faces(1), faces(0), shift)

    def grid(self, storage: str, format: Format | None) -> Grid:
        """Return the faces in the layout of the kernels, rounded to ``format`` first unless it is None."""
        wide = "f64" if storage == "f64" else "f32"
        held = []
        for faces in self._faces:
            values: NumpyArray = faces if wide == "f64" else faces.astype(np.float32)
            if format is not None:
                values = fake_quantize(values, format)
            stored = zeros(faces.shape, storage)
            stored.scale = power_below(float(np.abs(values).max()) / 2**12)
            store(stored, values)
            held.append(stored)
        high = self._high if format is None else fake_quantize(self._high, format)
        x, y, z = held
        return Grid(self.shape[2], x, y, z, np.ascontiguousarray(high, np.float64), self.shift)

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return A v, (n,), computed in double precision.

        Raises:
            ArgumentError: v is complex.
        """
        return _apply(self._passes, self._wide, "f64", v)

    def rounded(self, format: Format | None) -> Apply:
        """Return A v for a float32 v, A's values held in ``format``; errors as in :meth:`exact`."""
        grid = self.grid("f32", format)
        passes = stencil_passes(grid)
        return lambda v: _apply(passes, grid, "f32", v)

    def shifted(self, shift: float) -> Stencil:
        """Return A + shift as a stencil that shares the faces."""
        shifted = copy.copy(self)
        shifted.shift = self.shift + shift
        shifted._wide = dataclasses.replace(self._wide, shift=shifted.shift)
        shifted._passes = stencil_passes(shifted._wide)
        return shifted

    def scaled(self, exponent: int) -> Stencil:
        """Return A 2^exponent as a stencil.

        Raises:
            DataError: a coefficient would lose digits.
        """
        scaled = copy.copy(self)
        with np.errstate(under="ignore"):
            scaled._faces = [np.ldexp(f, exponent) for f in self._faces]
            scaled._high = np.ldexp(self._high, exponent)
        for changed, original in zip((*scaled._faces, scaled._high), (*self._faces, self._high), strict=True):
            if not np.array_equal(np.ldexp(changed, -exponent), original):
                raise DataError("A holds coefficients more than 1e300 apart; scale it first")
        scaled.shift = math.ldexp(self.shift, exponent)
        scaled._wide = scaled.grid("f64", None)
        scaled._passes = stencil_passes(scaled._wide)
        return scaled

    def magnitude(self) -> float:
        """Return :meth:`largest`."""
        return self.largest()

    def cg_vectors(self, precision: KrylovPrecision) -> CGVectors | None:
        """Return vectors that use the kernels of the stencil, or None if a format has no kernel."""
        vectors, faces = _storage(precision.vectors), _storage(precision.matrix)
        if vectors is None or faces is None or not serves(vectors, faces):
            return None
        grid = self._wide if faces == "f64" else self.grid(faces, None)
        return StencilVectors(grid, self.shape, vectors, self.largest())

    def largest(self) -> float:
        """Return a bound on |A|: twice the largest sum of the faces of a cell, plus |shift|."""
        x, y, z = (np.abs(f).max() for f in self._faces)
        return float(4 * (max(x, np.abs(self._high).max()) + y + z) + abs(self.shift))

    def to_scipy(self) -> scipy.sparse.csr_array:
        """Return the matrix as a SciPy array of compressed rows, float64."""
        _, ny, nx = self.shape
        x, y, z = (f[..., :nx] for f in self._faces)
        high = np.zeros(self.shape)
        high[..., -1] = self._high
        here = x + np.concatenate([x[..., 1:], high[..., -1:]], 2) + y[:, :-1] + y[:, 1:] + z[:-1] + z[1:]
        inner = x.copy(), y[:, :-1].copy(), z[:-1].copy()
        inner[0][..., 0], inner[1][:, 0], inner[2][0] = 0, 0, 0
        shape = (self.n, self.n)
        matrix = scipy.sparse.diags_array(here.ravel() + self.shift, shape=shape).tocsr()
        for faces, step in zip(inner, (1, nx, nx * ny), strict=True):
            if step < self.n:
                below = -faces.ravel()[step:]
                matrix = matrix + scipy.sparse.diags_array([below, below], offsets=[-step, step], shape=shape)
        matrix = matrix.tocsr()
        matrix.eliminate_zeros()
        return matrix

    def _padded(self, faces: Array) -> Array:
        padded = np.zeros((*faces.shape[:2], self.stride))
        padded[..., : faces.shape[2]] = faces
        return padded


def _apply(passes: StencilPasses, grid: Grid, storage: str, v: torch.Tensor) -> torch.Tensor:
    nz, ny, stride = grid.x.values.shape
    if v.is_complex():
        raise ArgumentError("v is complex, and a stencil multiplies real vectors: v.real, then v.imag")
    dtype = torch.float64 if storage == "f64" else torch.float32
    given = v.to(dtype).reshape(nz, ny, grid.nx).contiguous().numpy()
    if stride == grid.nx:
        r = ScaledArray(storage, given)
    else:
        r = zeros((nz, ny, stride), storage)
        r.values[..., : grid.nx] = given
    q = ScaledArray(storage, empty_aligned((nz, ny, stride), given.dtype))  # the kernel writes every value
    passes.update_direction(r, q, r, q, None, 0.0, 0.0, 1.0, 0.0)
    return torch.from_numpy(q.values)[..., : grid.nx].reshape(-1)


def _storage(format: str) -> str | None:
    plain = {"fp64": "f64", "fp32": "f32"}
    return plain.get(format) or _STORAGES.get(read(format))


def _fit(x: tuple[int, ...], y: tuple[int, ...], z: tuple[int, ...]) -> bool:
    nz, ny, nx = x[0], x[1], y[2]
    return min(nx, ny, nz) > 0 and (x, y, z) == ((nz, ny, nx + 1), (nz, ny + 1, nx), (nz + 1, ny, nx))
