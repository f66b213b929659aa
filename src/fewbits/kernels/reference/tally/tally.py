"""Sums and counts of rounding errors: the definition.

All arithmetic is in float64. The order of the additions is part of the definition, so that every instruction
set and every number of threads gives the same bits: eight sums side by side within a part of a line, these by
halves, then part after part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.bits.error_sums import LANES, ErrorSums

Array = NDArray[Any]
Reals = NDArray[np.float64]

# A real scale is rounded to float32, so the block's own largest value may lie an ulp beyond the limit.
BEYOND_ROUNDING = 1 - 2.0**-20


def tally(x: Array, y: Array, limits: Array | float, part: int) -> ErrorSums:
    """Return what became of ``x`` when it was rounded to ``y``.

    Args:
        x: (lines, n), float32 or float64. What is not finite counts as zero.
        y: the rounded values, of the same shape and type.
        limits: the largest magnitude that each value could have kept, broadcastable to x.
        part: values of a line that are added in one go.
    """
    finite = np.isfinite(x)
    wide = np.where(finite, x, 0).astype(np.float64)
    size, became = np.abs(wide), np.where(finite, y, 0).astype(np.float64)
    nonzero = size > 0
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        error = np.abs(became - wide)
        relative = np.where(nonzero, error / np.where(nonzero, size, 1), 0)
        return ErrorSums(
            signal=_total(size * size, part),
            noise=_total(error * error, part),
            relative=_total(relative, part),
            largest_relative=float(np.fmax.reduce(relative, axis=None, initial=0.0)),
            nonzero=int(np.count_nonzero(nonzero)),
            flushed=int(np.count_nonzero(nonzero & (became == 0))),
            saturated=int(np.count_nonzero(size * BEYOND_ROUNDING > limits)),
        )


def _total(values: Reals, part: int) -> float:
    """Return the sum of ``values``, (lines, n), in the order that the kernels add in.

    Lines are filled up with zeros to whole lanes. A longer one is cut into parts; of shorter ones as many as
    fit are a part.
    """
    lines, n = values.shape
    if not values.size:
        return 0.0
    width = -(-n // LANES) * LANES
    if width >= part:
        together = _filled(values, (lines, -(-n // part) * part)).reshape(-1, part)
    else:
        each = part // width
        together = _filled(values, (-(-lines // each) * each, width)).reshape(-1, each * width)
    lanes = np.add.accumulate(together.reshape(len(together), -1, LANES), axis=1)[:, -1]
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return float(np.add.accumulate(lanes[:, 0])[-1])


def _filled(values: Reals, shape: tuple[int, int]) -> Reals:
    whole = np.zeros(shape)
    whole[: values.shape[0], : values.shape[1]] = values
    return whole
