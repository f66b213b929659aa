"""The Hermitian operator on fields: H = gamma_5 M on all sites, or its Schur complement on the even ones.

M is [[A_ee, -D_eo / 2], [-D_oe / 2, A_oo]] on even and odd sites, where A is 4 + mass, with a clover term two
Hermitian blocks for each site. Its Schur complement A_ee - D_eo A_oo^-1 D_oe / 4 is better conditioned, acts
on half of the sites, and takes as much time as M (DeGrand and Rossi, Conditioning techniques for dynamical
fermions, 1990). A commutes with gamma_5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.arrays import lattice
from fewbits.kernels.bits.lattice import Extent, Field, zeros
from fewbits.solvers.lattice.blocks import Blocks

Links = NDArray[Any]
EVEN, ODD = 0, 1


@dataclass
class Hops:
    """One operator on fields of one dtype.

    Attributes:
        links: (groups, 4, numbers, 16), of the dtype of the fields.
        extent: groups along each axis.
        diagonal: A without a clover term: 4 + mass.
        even_odd: whether this is the Schur complement. Odd sites of the fields are then zeros, and stay so.
        blocks: A with a clover term, on all sites or on the even ones; else None.
        inverse: A^-1 on odd sites with ``even_odd`` and a clover term.
    """

    links: Links
    extent: Extent
    diagonal: float
    even_odd: bool
    blocks: Blocks | None = None
    inverse: Blocks | None = None
    _scratch: tuple[Field, ...] = ()

    @property
    def parity(self) -> int | None:
        """The parity of the sites on which the operator acts; None for all sites."""
        return EVEN if self.even_odd else None

    def apply(self, v: Field, out: Field, alpha: float | None = None) -> tuple[float, float]:
        """Let ``out`` be H v, or out - alpha H v; return |out|^2, and the old out times the new one."""
        own, diagonal = self._times_a(v)
        if self.even_odd:
            odd = self._fields[0]
            self._inverse_on_odd(v, None, odd)
            return self._hop(odd, own, out, diagonal, 0.5, EVEN, chiral=True, alpha=alpha)
        return lattice.hop(self.extent, self.links, diagonal, v, out, own=own, alpha=alpha)

    def reduce(self, source: Field, out: Field) -> None:
        """Let even sites of ``out`` be gamma_5 (s_e + D_eo A_oo^-1 s_o / 2) for a source s."""
        odd = self._fields[0]
        if self.inverse is None:
            odd, hopping = source, -0.5 / self.diagonal
        else:
            self.inverse.times(source, odd)
            hopping = -0.5
        self._hop(odd, source, out, 1.0, hopping, EVEN, chiral=True)

    def complete(self, x: Field, source: Field, out: Field) -> None:
        """Let odd sites of ``out`` be A_oo^-1 (s_o + D_oe x_e / 2): what they are in M x = s."""
        self._inverse_on_odd(x, source, out)

    def _inverse_on_odd(self, even: Field, source: Field | None, out: Field) -> None:
        """Let odd sites of ``out`` be A_oo^-1 (s_o + D_oe even / 2), with s zero for None."""
        own, weight = (even, 0.0) if source is None else (source, 1.0)
        if self.inverse is None:
            self._hop(even, own, out, weight / self.diagonal, -0.5 / self.diagonal, ODD)
        else:
            self._hop(even, own, out, weight, -0.5, ODD)
            self.inverse.times(out, out)

    def _times_a(self, v: Field) -> tuple[Field, float]:
        """Return a field and a number whose product is A v."""
        if self.blocks is None:
            return v, self.diagonal
        own = self._fields[1]
        self.blocks.times(v, own)
        return own, 1.0

    @property
    def _fields(self) -> tuple[Field, ...]:
        """Two fields for what lies between two passes."""
        if not self._scratch:
            self._scratch = tuple(zeros(len(self.links), self.links.dtype) for _ in range(2))
        return self._scratch

    def _hop(
        self,
        field: Field,
        own: Field,
        out: Field,
        diagonal: float,
        hopping: float,
        parity: int,
        *,
        chiral: bool = False,
        alpha: float | None = None,
    ) -> tuple[float, float]:
        """Let sites of one parity be diagonal own - hopping D field."""
        return lattice.hop(
            self.extent,
            self.links,
            diagonal,
            field,
            out,
            own=own,
            hopping=hopping,
            chiral=chiral,
            parity=parity,
            alpha=alpha,
        )


def even_groups(extent: Extent) -> NDArray[np.bool_]:
    """Return which groups are even, (groups,)."""
    even: NDArray[np.bool_] = np.indices(extent).sum(0).reshape(-1) % 2 == 0
    return even
