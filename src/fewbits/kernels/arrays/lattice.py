"""Passes over a four-dimensional lattice: the Wilson operator and the vector updates of conjugate gradients.

Each takes ``extent``, the number of groups of 16 sites along T, Z, Y and X. Float32 arithmetic has the same
bits on every CPU, and sums are added in an order that no number of threads changes.
:mod:`fewbits.kernels.reference.lattice.wilson` is the definition of the operator.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.arrays.threads import threads
from fewbits.kernels.bits.lattice import Extent, Field
from fewbits.kernels.native.lattice import wilson as native

Array = NDArray[np.generic]


def hop(
    extent: Extent,
    links: Array,
    diagonal: float,
    field: Field,
    out: Field,
    *,
    alpha: float | None = None,
    own: Field | None = None,
    hopping: float = 0.5,
    chiral: bool = True,
    parity: int | None = None,
) -> tuple[float, float]:
    """Let ``out`` be H field, or out - alpha H field; H is gamma_5 times the Wilson operator.

    With other options: diagonal own - hopping (sum over the neighbours in ``field``), of some sites.

    Args:
        extent: groups along T, Z, Y and X.
        links: (groups, 4, 18, 12 or 8, 16), of the dtype of the fields.
        diagonal: 4 + mass.
        field: what H is applied to.
        out: another field of the same dtype.
        alpha: None for H field.
        own: what the diagonal multiplies; ``field`` itself if None.
        hopping: times the sum over the neighbours.
        chiral: whether gamma_5 multiplies the result.
        parity: visit only the groups of this parity, 0 or 1; axes then have an even number of groups.

    Returns:
        |out|^2, and the old out times the new one (zero without alpha): of values as they are stored.
    """
    return native.hop(
        extent,
        links,
        diagonal,
        field,
        out,
        alpha=alpha,
        own=own,
        hopping=hopping,
        chiral=chiral,
        parity=parity,
        threads=threads(),
    )


def update_direction(
    extent: Extent,
    r: Field,
    p: Field,
    x: Array,
    *,
    alpha: float,
    gamma: float,
    beta: float,
    parity: int | None = None,
) -> float:
    """Let x += alpha p, then p = gamma r + beta p; return |p|^2. ``x`` is float32, float64 for float64."""
    return native.update_direction(
        extent, r, p, x, alpha=alpha, gamma=gamma, beta=beta, parity=parity, threads=threads()
    )


def update_solution(extent: Extent, p: Field, x: Array, *, alpha: float) -> None:
    """Let x += alpha p."""
    native.update_solution(extent, p, x, alpha=alpha, threads=threads())


def store_residual(extent: Extent, wide: NDArray[np.float64], r: Field, p: Field) -> tuple[float, float]:
    """Store ``wide``, (groups, 24, 16) float64, in r; return |r|^2 and r times p."""
    return native.store_residual(extent, wide, r, p, threads=threads())
