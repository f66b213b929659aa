"""The Hermitian operator on fields: H = gamma_5 M on all sites, or its Schur complement on the even ones.

M is [[a, -D_eo / 2], [-D_oe / 2, a]] on even and odd sites, with a = 4 + mass. Its Schur complement
a - D_eo D_oe / (4 a) is better conditioned, acts on half of the sites, and takes as much time as M (DeGrand
and Rossi, Conditioning techniques for dynamical fermions, 1990).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.arrays import lattice
from fewbits.kernels.bits.lattice import Extent, Field, zeros

Links = NDArray[Any]
EVEN, ODD = 0, 1


@dataclass
class Hops:
    """One operator on fields of one dtype.

    Attributes:
        links: (groups, 4, numbers, 16), of the dtype of the fields.
        extent: groups along each axis.
        diagonal: 4 + mass.
        even_odd: whether this is the Schur complement. Odd sites of the fields are then zeros, and stay so.
    """

    links: Links
    extent: Extent
    diagonal: float
    even_odd: bool
    _odd: Field | None = None  # what the even sites send to the odd ones

    @property
    def parity(self) -> int | None:
        """The parity of the sites on which the operator acts; None for all sites."""
        return EVEN if self.even_odd else None

    def apply(self, v: Field, out: Field, alpha: float | None = None) -> tuple[float, float]:
        """Let ``out`` be H v, or out - alpha H v; return |out|^2, and the old out times the new one."""
        if not self.even_odd:
            return lattice.hop(self.extent, self.links, self.diagonal, v, out, alpha=alpha)
        self._odd = self._odd or zeros(len(self.links), self.links.dtype)
        self.odd_sites(v, v, 0.0, self._odd)
        return self.even_sites(self._odd, v, self.diagonal, 0.5, out, alpha)

    def odd_sites(self, even: Field, own: Field, diagonal: float, out: Field) -> None:
        """Let ``out`` be diagonal own + D even / (2 a) on odd sites."""
        lattice.hop(
            self.extent,
            self.links,
            diagonal,
            even,
            out,
            own=own,
            hopping=-0.5 / self.diagonal,
            chiral=False,
            parity=ODD,
        )

    def even_sites(
        self, odd: Field, own: Field, diagonal: float, hopping: float, out: Field, alpha: float | None = None
    ) -> tuple[float, float]:
        """Let ``out`` be gamma_5 (diagonal own - hopping D odd) on even sites, or out - alpha times that."""
        return lattice.hop(
            self.extent, self.links, diagonal, odd, out, own=own, hopping=hopping, parity=EVEN, alpha=alpha
        )


def even_groups(extent: Extent) -> NDArray[np.bool_]:
    """Return which groups are even, (groups,)."""
    even: NDArray[np.bool_] = np.indices(extent).sum(0).reshape(-1) % 2 == 0
    return even
