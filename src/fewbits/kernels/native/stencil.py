"""Both passes of conjugate gradients on a stencil; kernels/reference/stencil.py defines them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.kernels.layout import empty_aligned
from fewbits.kernels.native.isa import active_isa
from fewbits.kernels.reference.stencil import Grid
from fewbits.kernels.stored import Stored


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

    def turn(
        self,
        r: Stored,
        p: Stored,
        following: Stored,
        q: Stored,
        x: NDArray[Any] | None,
        alpha: float,
        earlier: float,
        gamma: float,
        beta: float,
    ) -> tuple[float, float, float]:
        """See :func:`fewbits.kernels.reference.stencil.turn`."""
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

    def advance(self, r: Stored, q: Stored, r_scale: float, alpha: float) -> tuple[float, float]:
        """See :func:`fewbits.kernels.reference.stencil.advance`."""
        _native.update_residual(self.a, _held(r), _held(q), r_scale, alpha, self.sums, self.threads)
        r.scale = r_scale
        found = self.sums[: 2 * self.a.residual_items].reshape(-1, 2).sum(0)
        return float(found[0]), float(found[1])

    def pack(self, values: NDArray[np.float64], to: Stored, p: Stored) -> tuple[float, float]:
        """See :func:`fewbits.kernels.reference.stencil.pack`."""
        _native.pack_stencil(self.a, values, _held(to), _held(p), self.sums, self.threads)
        found = self.sums[: 2 * self.a.residual_items].reshape(-1, 2).sum(0)
        return float(found[0]), float(found[1])


def _held(s: Stored) -> Any:
    return _native.Held(getattr(_native.Storage, s.storage), s.values, s.norms, s.scale)
