"""The Wilson operator with a clover term."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from fewbits.solvers.lattice.field_strength import clover_blocks
from fewbits.solvers.lattice.gauge_field import GaugeField
from fewbits.solvers.lattice.links import read_number
from fewbits.solvers.lattice.wilson import Wilson

Array = NDArray[np.complex128]


class Clover(Wilson):
    """The Wilson operator with the term of Sheikholeslami and Wohlert, which takes errors of order a away.

    M = Wilson's M + csw/2 sum over mu < nu of sigma_mu,nu F_mu,nu, with sigma_mu,nu = [gamma_mu, gamma_nu]/2i
    and F_mu,nu from the four clover leaves at each site. In narrow precisions 4 + m and the term are two
    Hermitian 6x6 blocks for each site, 72 integers with a float32 norm for each block; so is their inverse on
    odd sites with ``even_odd``.

    Args:
        links: as for :class:`Wilson`.
        mass: m.
        csw: the coefficient of the term; 1 at tree level, 0 leaves the Wilson operator.
        reconstruct: as for :class:`Wilson`.
        boundary: as for :class:`Wilson`; the field strength is the same for each.
        split: as for :class:`Wilson`.
        group: as for :class:`Wilson`.

    Raises:
        ArgumentError: a shape, size or number is not one of these, or links are not in SU(3).
        DataError: NaN or infinity; in a solve with ``even_odd``, a block that has no inverse.
    """

    def __init__(
        self,
        links: Array,
        *,
        mass: float,
        csw: float = 1.0,
        reconstruct: int | None = None,
        boundary: Sequence[int] = (1, 1, 1, 1),
        split: Sequence[int] = (1, 1, 1, 1),
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.csw = csw
        super().__init__(
            links, mass=mass, reconstruct=reconstruct, boundary=boundary, split=split, group=group
        )

    def _announced(self, links: object, *numbers: object) -> str:
        return super()._announced(links, *numbers, self.csw)

    def _blocks(self, field: GaugeField) -> Array | None:
        self.csw = read_number(self.csw, "csw")
        return field.inside(clover_blocks(field.around(), self.csw, 4 + self.mass))
