"""The normal equations of staggered fermions, M^+ M x = M^+ b, on all sites or on the even ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewbits.formats import Format
from fewbits.kernels.bits.lattice import COLOUR_REALS, SITES, Field
from fewbits.solvers.lattice.packed_vectors import LatticeVectors
from fewbits.solvers.lattice.square_operator import Square
from fewbits.solvers.lattice.staggered_hops import StaggeredHops
from fewbits.solvers.lattice.stored_links import DTYPES, StoredLinks
from fewbits.solvers.operators.cg_vectors import CGVectors
from fewbits.solvers.operators.operator import Apply
from fewbits.solvers.precision import KrylovPrecision

Array = NDArray[Any]


class StaggeredNormal(Square):
    """M^+ M = m^2 - D^2 on the 6 real numbers of each site.

    The numbers lie in the order of the kernels, (groups, 6, 16) flattened: ``Staggered.flat`` and
    ``Staggered.field`` convert. If links and vectors have the same format, the vectors are packed in memory;
    see :class:`LatticeVectors`.

    Args:
        links: those of this process; its axes are multiples of 4.
        mass: m.
        even_odd: whether even sites alone are unknowns; vectors are then zero on odd ones.
    """

    symmetric = True
    preferred = "half"
    reals = COLOUR_REALS

    def __init__(self, links: StoredLinks, mass: float, *, even_odd: bool = False) -> None:
        self.links, self.domain, self.mass, self.even_odd = links, links.domain, mass, even_odd
        self.n = COLOUR_REALS * SITES * self.domain.groups
        self.unknowns = self.n * self.domain.processes.size
        self.signs = np.where(self.domain.even, 1.0, -1.0)[:, None, None]
        self._exact: StaggeredHops | None = None

    @staticmethod
    def turned(v: torch.Tensor) -> torch.Tensor:
        """Return i v, (..., n)."""
        parts = v.reshape(-1, COLOUR_REALS // 2, 2, SITES)
        return torch.stack([-parts[:, :, 1], parts[:, :, 0]], 2).reshape(v.shape)

    def exact_hops(self) -> StaggeredHops:
        """Return M^+ M in float64."""
        if self._exact is None:
            self._exact = self._hops(self.links.exact())
        return self._exact

    def times(self, v: Array) -> Array:
        """Return M v on all sites, (n,) float64."""
        out = np.empty_like(v)
        self.exact_hops().apply(self._field(v), self._field(out))
        return out

    def hermitian(self, v: Array) -> Array:
        """Return H v with H = epsilon M, epsilon = 1 on even and -1 on odd sites: H^2 = M^+ M."""
        return (self.signs * self.times(v).reshape(-1, COLOUR_REALS, SITES)).reshape(-1)

    def exact(self, v: torch.Tensor) -> torch.Tensor:
        """Return M^+ M v, (n,) float64."""
        return self._squared(self.exact_hops(), v)

    def rounded(self, format: Format | None) -> Apply:
        """Return the product with a float32 vector; links have the values of the format.

        Raises:
            ArgumentError: a format other than ``quda_half`` and ``quda_quarter``.
        """
        hops = self._hops(self.links.rounded(format)[0])
        return lambda v: self._squared(hops, v)

    def cg_vectors(self, precision: KrylovPrecision) -> CGVectors | None:
        """Return packed vectors if links and vectors have the same format, else None."""
        if precision.matrix != precision.vectors or precision.matrix not in DTYPES:
            return None
        return LatticeVectors(self._hops(self.links.stored(DTYPES[precision.matrix])))

    def _hops(self, links: Array) -> StaggeredHops:
        return StaggeredHops(links, self.domain, self.even_odd, self.mass)

    def _squared(self, hops: StaggeredHops, v: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(v)
        hops.square(self._field(v.numpy()), self._field(out.numpy()))
        return out

    def _field(self, v: Array) -> Field:
        return Field(v.reshape(-1, COLOUR_REALS, SITES))
