"""Rounding to ternary and binary values with scales from a mean, in a few passes over the array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.formats import Format
from fewbits.kernels.bits.layout import Parts
from fewbits.kernels.bits.options import Options
from fewbits.kernels.bits.scale_rules import MEAN_RULES, TWN_THRESHOLD
from fewbits.kernels.reference.values.blocks import spread
from fewbits.kernels.reference.values.scales import mean_of, mean_scale

Array = NDArray[Any]


def round_by_mean(x: Array, format: Format, chosen: Options) -> tuple[NDArray[np.int8], Array] | None:
    """Return integers from -1 to 1, of x's shape, and a float32 scale for each block, (..., blocks).

    Integers times scales are what :func:`fewbits.kernels.reference.quantize` gives, bit for bit. None where
    only that can: another scale rule or rounding, values that are not finite, a block of zeros.

    Args:
        x: (..., n), float32 or float64, blocks along the last axis.
        format: any format.
        chosen: from :func:`fewbits.kernels.bits.options.options`.
    """
    if chosen.scale_rule not in MEAN_RULES or chosen.rounding != "nearest_even" or not x.size:
        return None
    assert format.groups.scales is not None
    size = format.groups.scales.size
    with np.errstate(over="ignore", invalid="ignore"):
        scales = mean_scale(x, format, chosen, None)
    if not ((scales > 0) & (scales < np.finfo(np.float32).max)).all():  # NaN is not above zero
        return None
    if chosen.scale_rule == "twn":
        threshold: Array = TWN_THRESHOLD * mean_of(x, size)
        negative, positive = x < -spread(threshold, size, x.shape), x > spread(threshold, size, x.shape)
    else:
        with np.errstate(over="ignore"):
            quotient = x / spread(scales.astype(x.dtype), size, x.shape)
        # A tie is even: zero. Binary values have no zero to be nearest to.
        half = 0.5 if format.element.has_zero else 0.0
        negative = quotient < -half
        positive = quotient > half if half else ~negative
    return positive.astype(np.int8) - negative.astype(np.int8), scales


def values_of(integers: NDArray[np.int8], scales: Array, format: Format) -> Array:
    """Return the values of what :func:`round_by_mean` gives, float32."""
    assert format.groups.scales is not None
    return np.multiply(integers, spread(scales, format.groups.scales.size, integers.shape), dtype=np.float32)


def coded(integers: NDArray[np.int8], scales: Array, format: Format) -> Parts:
    """Return the codes of what :func:`round_by_mean` gives."""
    codes = integers & 3 if format.element.has_zero else integers < 0
    return Parts(codes.astype(np.uint8), scales.view(np.uint32))
