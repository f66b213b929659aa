"""A stored tensor viewed as a matrix with blocks along its rows, for measuring, casting and pruning."""

from __future__ import annotations

from math import prod

_SHORTEST_ROW = 32  # values; the block size of the MX formats


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return a tensor's shape as (rows, values in a row): blocks run along a row, and a row is a channel.

    A row is the last axis. If a tensor has three axes or more and the last is shorter than 32 values, as in
    the kernel of a convolution, all axes but the first form one row, as in its matrix product.

    >>> matrix_shape((4096, 11008)), matrix_shape((64, 3, 7, 7))
    ((4096, 11008), (64, 147))
    """
    if is_convolution_kernel(shape):
        return shape[0], prod(shape[1:])
    return prod(shape[:-1]), shape[-1] if shape else 1


def is_convolution_kernel(shape: tuple[int, ...]) -> bool:
    """Return whether a row spans more than the last axis."""
    return len(shape) >= 3 and shape[-1] < _SHORTEST_ROW
