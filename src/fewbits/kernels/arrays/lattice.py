"""Passes over a four-dimensional lattice: its operators, and the vector updates of conjugate gradients.

Float32 arithmetic has the same bits on every CPU, and sums over sites are exact until they are rounded once,
so that no division of sites among threads or processes changes them.
:mod:`fewbits.kernels.reference.lattice` has the definitions of the operators.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.arrays.threads import threads
from fewbits.kernels.bits.lattice import Field, Layout
from fewbits.kernels.native.lattice import passes as native

Array = NDArray[np.generic]


def hop(
    layout: Layout,
    links: Array,
    diagonal: float,
    field: Field,
    out: Field,
    *,
    blocks: tuple[Array, Array | None] | None = None,
    on_result: bool = False,
    alpha: float | None = None,
    own: Field | None = None,
    hopping: float = 0.5,
    chiral: bool = True,
    parity: int | None = None,
) -> tuple[float, float]:
    """Let ``out`` be H field, or out - alpha H field; H is gamma_5 times the Wilson operator.

    With other options: diagonal own - hopping (sum over the neighbours in ``field``), of some sites. For
    fields of 6 numbers the sum is that of staggered fermions, with their phases, on a lattice whose axes are
    multiples of 4.

    Args:
        layout: of the fields; ``field`` and ``links`` have its faces, the others may.
        links: (groups, 4, 18, 12 or 8, 16), of the dtype of the fields.
        diagonal: 4 + mass.
        field: what H is applied to.
        out: another field of the same dtype.
        blocks: Hermitian blocks, (groups, 2, 36, 16) of the dtype of the fields, and their norms, (groups, 2,
            16) float32 for integers, else None. They multiply ``own``, besides ``diagonal``.
        on_result: whether they multiply the whole result instead.
        alpha: None for H field.
        own: what the diagonal multiplies; ``field`` itself if None.
        hopping: times the sum over the neighbours.
        chiral: whether gamma_5 multiplies the result; not for 6 numbers.
        parity: visit only the groups of this parity, 0 or 1; axes then have an even number of groups.

    Returns:
        |out|^2, and the old out times the new one (zero without alpha): of values as they are stored.
    """
    return native.hop(
        layout,
        links,
        diagonal,
        field,
        out,
        blocks=blocks,
        on_result=on_result,
        alpha=alpha,
        own=own,
        hopping=hopping,
        chiral=chiral,
        parity=parity,
        threads=threads(),
    )


def update_direction(
    layout: Layout,
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
        layout, r, p, x, alpha=alpha, gamma=gamma, beta=beta, parity=parity, threads=threads()
    )


def update_solution(layout: Layout, p: Field, x: Array, *, alpha: float) -> None:
    """Let x += alpha p."""
    native.update_solution(layout, p, x, alpha=alpha, threads=threads())


def store_residual(layout: Layout, wide: NDArray[np.float64], r: Field, p: Field) -> tuple[float, float]:
    """Store ``wide``, (groups, 24 or 6, 16) float64, in r; return |r|^2 and r times p."""
    return native.store_residual(layout, wide, r, p, threads=threads())
