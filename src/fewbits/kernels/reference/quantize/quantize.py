"""From numbers to codes and scales: the definition.

Blocks lie along the last axis here; :mod:`fewbits.kernels.arrays` moves other axes there. A last block that
is not full is a block of fewer values. An element is rounded once, after its block was divided by the scale
that :mod:`fewbits.kernels.reference.values.scales` chooses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.errors import DataError
from fewbits.formats import Format
from fewbits.kernels.bits.layout import Parts
from fewbits.kernels.bits.options import Options
from fewbits.kernels.reference.dequantize.dequantize import multiplier
from fewbits.kernels.reference.values.blocks import spread
from fewbits.kernels.reference.values.encode import encode
from fewbits.kernels.reference.values.scales import scaled
from fewbits.kernels.reference.values.stochastic import draws as draw

Array = NDArray[Any]


def quantize(
    x: Array, format: Format, options: Options, amax: float | None = None, positions: Array | None = None
) -> Parts:
    """Return the codes and scales of ``x``.

    Args:
        x: (..., n), float32 or float64, at least one dimension.
        format: any format.
        options: every choice, from :func:`fewbits.kernels.options.options`.
        amax: the largest magnitude of the whole tensor where x is a part of it; a per-tensor scale is chosen
        from it.
        positions: index of each value in the user's array, of x's shape; stochastic rounding draws by it.

    Raises:
        DataError: x holds NaN or infinity and ``options.nonfinite`` is ``raise``.
    """
    x = without_nonfinite(x, format, options)
    draws = None
    if options.rounding == "stochastic":
        where = np.arange(x.size).reshape(x.shape) if positions is None else positions
        draws = draw(where, options.seed, options.random_bits)
    parts, value = scaled(x, format, options, amax)
    codes = encode(format.element, value, options.rounding, options.overflow, draws)
    scales = format.groups.scales
    if parts.scales is not None and scales is not None and scales.element.has_nan:
        lost = spread(parts.scales == scales.element.nan_code, scales.size, x.shape)
        codes = np.where(lost, codes.dtype.type(0), codes)
    return Parts(codes, parts.scales, parts.shifts, parts.outer)


def limits(x: Array, format: Format, options: Options, amax: float | None = None) -> Array:
    """Return the largest magnitude that each value of ``x`` could have kept; beyond it, it saturates.

    Returns:
        float64, of x's shape or broadcastable to it.
    """
    if format.groups.scales is None:
        return np.full((1,) * x.ndim, format.element.max)
    x = without_nonfinite(x, format, options)
    parts, _ = scaled(x, format, options, amax, divide=False)
    undivided = Parts(np.empty(x.shape, np.uint8), parts.scales, parts.shifts, parts.outer)
    return format.element.max * multiplier(undivided, format)


def without_nonfinite(x: Array, format: Format, options: Options) -> Array:
    """Return ``x`` with NaN and infinity replaced or refused where ``options.nonfinite`` says so."""
    if options.nonfinite == "saturate":
        return np.nan_to_num(x, nan=0.0)  # infinity becomes the dtype's largest value, NaN zero
    if options.nonfinite == "raise" and not np.isfinite(x).all():
        nan, inf = int(np.isnan(x).sum()), int(np.isinf(x).sum())
        raise DataError(
            f"the array holds {nan} NaN and {inf} infinities, and nonfinite='raise' refuses them for"
            f" {format}; clean the data, or pass nonfinite='saturate'"
        )
    return x
