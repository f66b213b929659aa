"""Products of packed integers with vectors that are rounded to integers: the definition.

A vector is rounded to :data:`ACTIVATION`, so a block of 32 of its values is integers times one float32.
Where the weight's elements are integers times one power of two, and a scale of it serves whole blocks of 32
values, the sum of a block is an exact integer, and only the sums over blocks round.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbits.formats import parse

ACTIVATION = parse("block(element=int(8,coding=symmetric),scale=fp32,size=32)")
_BLOCK, _LANES = 32, 16


def product(
    x: NDArray[np.int8],
    x_scales: NDArray[np.float32],
    w: NDArray[np.int64],
    w_scales: NDArray[np.float32],
    unit: float,
) -> NDArray[np.float32]:
    """Return the (batch, lines) products of integers, each rounding named by a line of this function.

    Args:
        x: (batch, n) codes of :data:`ACTIVATION`, -127 to 127.
        x_scales: (batch, blocks), one for each 32 values of a row; the last block may be shorter.
        w: (lines, n) integers of at most eight bits: what the elements are in units of ``unit``.
        w_scales: (lines, blocks), the scale of each 32 values; ones where the format has none.
        unit: a power of two.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        of_x = x_scales * np.float32(unit)
        lanes = np.zeros((len(x), len(w), _LANES), np.float32)
        for block in range(x_scales.shape[1]):
            part = slice(_BLOCK * block, _BLOCK * (block + 1))
            exact = (x[:, part].astype(np.int64) @ w[:, part].T).astype(np.float32)  # below 2^24
            scale = w_scales[None, :, block] * of_x[:, None, block]  # rounded
            lanes[:, :, block % _LANES] += exact * scale  # the product rounded, then the sum
        for width in (8, 4, 2, 1):
            lanes = lanes[..., :width] + lanes[..., width : 2 * width]
    return lanes[..., 0]
