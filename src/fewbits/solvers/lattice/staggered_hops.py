"""The hops of staggered fermions on packed fields, and the two steps of M^+ M = m^2 - D^2.

D is antihermitian and leads from even to odd sites and back: M^+ M does not mix them, and on even sites takes
half of the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.bits.lattice import COLOUR_REALS, Field
from fewbits.solvers.lattice.hops import ODD, FieldHops

Array = NDArray[Any]


@dataclass
class StaggeredHops(FieldHops):
    """M^+ M on fields of colour vectors.

    Attributes:
        mass: m.
    """

    mass: float
    reals = COLOUR_REALS

    def apply(self, v: Field, out: Field, parity: int | None = None, weight: float = 1.0) -> None:
        """Let sites of one parity of ``out`` be weight (m v + D v), on all sites for None."""
        self.hop(v, v, out, weight * self.mass, -0.5 * weight, parity)

    def curvature(self, p: Field, t: Field, length2: float) -> float:
        """Let t = D p; return p^T M^+ M p = m^2 p.p + t.t."""
        return self.mass**2 * length2 + self.hop(p, p, t, 0.0, -0.5, ODD if self.even_odd else None)[0]

    def step(self, p: Field, t: Field, r: Field, alpha: float) -> tuple[float, float]:
        """Let r -= alpha (m^2 p - D t) with t = D p; return |r|^2, and the old r times the new one."""
        return self.hop(t, p, r, self.mass**2, 0.5, self.parity, alpha=alpha)

    def square(self, v: Field, out: Field) -> None:
        """Let ``out`` be M^+ M v."""
        t = self._room(1)
        self.curvature(v, t, 0.0)
        self.hop(t, v, out, self.mass**2, 0.5, self.parity)

    def image(self, p: NDArray[np.float32], t: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return m p + D p, which is M p."""
        return np.float32(self.mass) * p + t
