"""Both passes of conjugate gradients on a stencil; kernels/reference/stencil/passes.py defines them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.kernels.bits.memory import empty_aligned
from fewbits.kernels.bits.stencil import Grid, ScaledArray
from fewbits.kernels.native.dispatch.isa import active_isa


def serves(vectors: str, faces: str) -> bool:
    """Return whether there are kernels for vectors and faces of these storages: f64, f32, f16 or i16."""
    return _native.serves(_storage(vectors), _storage(faces))


class StencilPasses:
    """The passes over one grid; workspace and sums are allocated once.

    Args:
        a: the grid; its arrays are read where they lie.
        threads: most threads to use.
    """

    def __init__(self, a: Grid, threads: int) -> None:
        active_isa()
        nz, ny, _ = a.x.values.shape
        x, y, z = (_held(s) for s in (a.x, a.y, a.z))
        self.a = _native.Stencil(a.nx, ny, nz, x, y, z, a.high, a.shift)
        self.threads = threads
        self.workspace = empty_aligned((threads * self.a.workspace,), np.uint8)
        self.sums = np.zeros(max(3 * self.a.direction_items, 2 * self.a.residual_items))

    def update_direction(
        self,
        r: ScaledArray,
        p: ScaledArray,
        following: ScaledArray,
        q: ScaledArray,
        x: NDArray[Any] | None,
        alpha: float,
        earlier: float,
        gamma: float,
        beta: float,
    ) -> tuple[float, float, float]:
        """See :func:`fewbits.kernels.reference.stencil.passes.update_direction`."""
        _native.update_direction(
            self.a,
            _held(r),
            _held(p),
            _held(following),
            _held(q),
            x,
            alpha,
            earlier,
            gamma,
            beta,
            self.workspace,
            self.sums,
            self.threads,
        )
        found = self.sums[: 3 * self.a.direction_items].reshape(-1, 3).sum(0)
        return float(found[0]), float(found[1]), float(found[2])

    def update_residual(
        self, r: ScaledArray, q: ScaledArray, r_scale: float, alpha: float
    ) -> tuple[float, float]:
        """See :func:`fewbits.kernels.reference.stencil.passes.update_residual`."""
        _native.update_residual(self.a, _held(r), _held(q), r_scale, alpha, self.sums, self.threads)
        r.scale = r_scale
        found = self.sums[: 2 * self.a.residual_items].reshape(-1, 2).sum(0)
        return float(found[0]), float(found[1])

    def pack(self, values: NDArray[np.float64], to: ScaledArray, p: ScaledArray) -> tuple[float, float]:
        """See :func:`fewbits.kernels.reference.stencil.passes.pack`."""
        _native.pack_stencil(self.a, values, _held(to), _held(p), self.sums, self.threads)
        found = self.sums[: 2 * self.a.residual_items].reshape(-1, 2).sum(0)
        return float(found[0]), float(found[1])


def _held(s: ScaledArray) -> Any:
    return _native.StoredNumbers(_storage(s.storage), s.values, s.norms, s.scale)


def _storage(name: str) -> _native.Storage:
    return _native.Storage[name]
