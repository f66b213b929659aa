"""Both passes of conjugate gradients over a 7-point stencil."""

from __future__ import annotations

from fewbits.kernels.arrays.threads import threads
from fewbits.kernels.bits.stencil import Grid
from fewbits.kernels.native import StencilPasses, serves

__all__ = ["StencilPasses", "serves", "stencil_passes"]


def stencil_passes(grid: Grid) -> StencilPasses:
    """Return the passes over a grid, with workspace for the current number of threads.

    :mod:`fewbits.kernels.reference.stencil.passes` defines them.
    """
    return StencilPasses(grid, threads())
