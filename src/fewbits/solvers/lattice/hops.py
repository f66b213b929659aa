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
from fewbits.kernels.bits.lattice import REALS, Field
from fewbits.solvers.lattice.blocks import Blocks
from fewbits.solvers.lattice.domain import Domain

Links = NDArray[Any]
EVEN, ODD = 0, 1


@dataclass
class FieldHops:
    """What operators on fields of one dtype share.

    Attributes:
        links: (groups, 4, numbers, 16), of the dtype of the fields, with those of the halo.
        domain: the sites of this process.
        even_odd: whether only even sites are unknowns. Odd sites of the fields are then zeros, and stay so.
    """

    links: Links
    domain: Domain
    even_odd: bool
    reals = REALS

    def __post_init__(self) -> None:
        self._rooms: list[Field] = []

    @property
    def parity(self) -> int | None:
        """The parity of the sites on which the operator acts; None for all sites."""
        return EVEN if self.even_odd else None

    def zeros(self) -> Field:
        """Return a field of zeros, with room for its halo."""
        return self.domain.zeros(self.links.dtype, self.reals)

    def hop(
        self,
        field: Field,
        own: Field,
        out: Field,
        diagonal: float,
        hopping: float,
        parity: int | None,
        *,
        alpha: float | None = None,
        **options: Any,
    ) -> tuple[float, float]:
        """Let sites of one parity be diagonal own - hopping D field, or take alpha times it off."""
        return lattice.hop(
            self.domain.layout,
            self.links,
            diagonal,
            self._with_halo(field, None if parity is None else 1 - parity),
            out,
            own=own,
            hopping=hopping,
            parity=parity,
            alpha=alpha,
            **options,
        )

    def _with_halo(self, field: Field, parity: int | None) -> Field:
        """Return the field with the halo filled, a copy if it has no room for one."""
        if self.domain.layout.stored == self.domain.groups:
            return field
        if len(field.values) == self.domain.groups:
            copy = self._room(0)
            copy.values[: self.domain.groups] = field.values
            field = copy
        self.domain.fill(field, parity)
        return field

    def _room(self, number: int) -> Field:
        """Return a field for what lies between two passes."""
        while len(self._rooms) <= number:
            self._rooms.append(self.zeros())
        return self._rooms[number]


@dataclass
class Hops(FieldHops):
    """H of Wilson or clover fermions.

    Attributes:
        diagonal: A without a clover term: 4 + mass.
        blocks: A with a clover term, with ``even_odd`` A^-1 on odd sites; else None.
    """

    diagonal: float
    blocks: Blocks | None = None

    def apply(self, v: Field, out: Field, alpha: float | None = None) -> tuple[float, float]:
        """Let ``out`` be H v, or out - alpha H v; return |out|^2, and the old out times the new one."""
        field = v
        if self.even_odd:
            field = self._room(1)
            self._inverse_on_odd(v, None, field)
        diagonal = self.diagonal if self.blocks is None else 1.0
        return self.hop(field, v, out, diagonal, 0.5, self.parity, alpha=alpha, blocks=self.blocks)

    def curvature(self, p: Field, t: Field, length2: float) -> float:
        """Let t = H p; return p^T H^2 p."""
        del length2
        return self.apply(p, t)[0]

    def step(self, p: Field, t: Field, r: Field, alpha: float) -> tuple[float, float]:
        """Let r -= alpha H^2 p, t being H p; return |r|^2, and the old r times the new one."""
        del p
        return self.apply(t, r, alpha)

    def image(self, p: NDArray[np.float32], t: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return H p, which is t."""
        del p
        return t

    def reduce(self, source: Field, out: Field) -> None:
        """Let even sites of ``out`` be gamma_5 (s_e + D_eo A_oo^-1 s_o / 2) for a source s."""
        field, hopping = source, -0.5
        if self.blocks is None:
            hopping /= self.diagonal
        else:
            field = self._room(1)
            self.hop(source, source, field, 1.0, 0.0, ODD, chiral=False, blocks=self.blocks, on_result=True)
        self.hop(field, source, out, 1.0, hopping, EVEN)

    def complete(self, x: Field, source: Field, out: Field) -> None:
        """Let odd sites of ``out`` be A_oo^-1 (s_o + D_oe x_e / 2): what they are in M x = s."""
        self._inverse_on_odd(x, source, out)

    def _inverse_on_odd(self, even: Field, source: Field | None, out: Field) -> None:
        """Let odd sites of ``out`` be A_oo^-1 (s_o + D_oe even / 2), with s zero for None."""
        own, weight = (even, 0.0) if source is None else (source, 1.0)
        over = self.diagonal if self.blocks is None else 1.0
        options: dict[str, Any] = {"chiral": False, "blocks": self.blocks, "on_result": True}
        self.hop(even, own, out, weight / over, -0.5 / over, ODD, **options)
