"""Passes over a four-dimensional lattice: its operators, and what conjugate gradients do besides.

Definitions are in :mod:`fewbits.kernels.reference.lattice`. Sites lie in groups of 16, as
native/jobs/lattice.hpp says. Float32 arithmetic has the same bits on every CPU, and sums over sites are exact
until they are rounded once, so that no division of sites among threads or processes changes them.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from fewbits import _native
from fewbits.kernels.bits.lattice import Field, Layout
from fewbits.kernels.native.dispatch.isa import active_isa

Array = NDArray[Any]


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
    threads: int,
) -> tuple[float, float]:
    """Let ``out`` be H field, or out - alpha H field, as :func:`fewbits.kernels.arrays.lattice.hop` says.

    Returns:
        |out|^2, and the old out times the new one (zero without alpha): of values as they are stored.
    """
    active_isa()
    block_values, block_norms = blocks or (None, None)
    one, two = _native.lattice_hop(
        *layout[:2],
        links,
        block_values,
        block_norms,
        on_result,
        diagonal,
        hopping,
        chiral,
        parity,
        *field,
        *(own or field),
        *out,
        alpha,
        threads,
    )
    if alpha is None:
        return layout.total((one,))[0], 0.0
    length2, product = layout.total((one, two))
    return length2, product


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
    threads: int,
) -> float:
    """Let x += alpha p, then p = gamma r + beta p; return |p|^2. ``x`` is float32, float64 for float64."""
    active_isa()
    sums = _native.lattice_update_direction(*layout[:2], *r, *p, x, alpha, gamma, beta, parity, threads)
    return layout.total((sums,))[0]


def update_solution(layout: Layout, p: Field, x: Array, *, alpha: float, threads: int) -> None:
    """Let x += alpha p."""
    active_isa()
    _native.lattice_update_solution(*layout[:2], *p, x, alpha, threads)


def store_residual(layout: Layout, wide: Array, r: Field, p: Field, *, threads: int) -> tuple[float, float]:
    """Store ``wide``, (groups, 24 or 6, 16) float64, in r; return |r|^2 and r times p."""
    active_isa()
    rr, rp = layout.total(_native.lattice_store_residual(*layout[:2], wide, *r, *p, threads))
    return rr, rp
