"""Passes over a four-dimensional lattice: the Wilson operator, and what conjugate gradients do besides.

The definition is :mod:`fewbits.kernels.reference.lattice.wilson`. Sites lie in groups of 16, as
native/jobs/lattice.hpp says; ``extent`` is the number of groups along T, Z, Y and X. Float32 arithmetic has
the same bits on every CPU, and sums are added in an order that no number of threads changes.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from fewbits import _native
from fewbits.kernels.bits.lattice import Extent, Field
from fewbits.kernels.native.dispatch.isa import active_isa

Array = NDArray[Any]


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
    threads: int,
) -> tuple[float, float]:
    """Let ``out`` be H field, or out - alpha H field, as :func:`fewbits.kernels.arrays.lattice.hop` says.

    Returns:
        |out|^2, and the old out times the new one (zero without alpha): of values as they are stored.
    """
    active_isa()
    fields = (*field, *(own or field), *out)
    return _native.lattice_hop(extent, links, diagonal, hopping, chiral, parity, *fields, alpha, threads)


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
    threads: int,
) -> float:
    """Let x += alpha p, then p = gamma r + beta p; return |p|^2. ``x`` is float32, float64 for float64."""
    return _native.lattice_update_direction(extent, *r, *p, x, alpha, gamma, beta, parity, threads)


def update_solution(extent: Extent, p: Field, x: Array, *, alpha: float, threads: int) -> None:
    """Let x += alpha p."""
    _native.lattice_update_solution(extent, *p, x, alpha, threads)


def store_residual(extent: Extent, wide: Array, r: Field, p: Field, *, threads: int) -> tuple[float, float]:
    """Store ``wide``, (groups, 24, 16) float64, in r; return |r|^2 and r times p."""
    return _native.lattice_store_residual(extent, wide, *r, *p, threads)
