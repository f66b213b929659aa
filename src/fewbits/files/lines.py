"""Along which values of a stored tensor blocks lie: one rule for measuring and for casting."""

from __future__ import annotations

from math import prod

_SHORTEST_LINE = 32  # values; the block size of the MX formats


def lines(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return a tensor as (lines, values in a line): what blocks run along and what a channel is.

    A line is the last axis. Where a tensor has three axes or more and the last is shorter than 32 values, as
    in the kernel of a convolution, all axes but the first are one line, as they are in its matrix product.

    >>> lines((4096, 11008)), lines((64, 3, 7, 7))
    ((4096, 11008), (64, 147))
    """
    if is_kernel(shape):
        return shape[0], prod(shape[1:])
    return prod(shape[:-1]), shape[-1] if shape else 1


def is_kernel(shape: tuple[int, ...]) -> bool:
    """Whether a line is more than the last axis."""
    return len(shape) >= 3 and shape[-1] < _SHORTEST_LINE
