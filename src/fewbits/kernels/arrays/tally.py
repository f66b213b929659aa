"""What rounding does to the values of an array: sums and counts of errors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.formats import Format, shares_scale
from fewbits.kernels import native
from fewbits.kernels.arrays.conversions import fake_quantize, limits
from fewbits.kernels.arrays.threads import threads
from fewbits.kernels.arrays.values import largest_finite
from fewbits.kernels.bits.axes import checked_axis
from fewbits.kernels.bits.error_sums import ErrorSums, part_of
from fewbits.kernels.bits.options import Options
from fewbits.kernels.bits.reals import widened, without_infinity
from fewbits.kernels.bits.scale_rules import MEAN_RULES

Array = NDArray[Any]


PIECE = 1 << 16  # values that the definition takes at once: it needs about twenty times their bytes


def tally(x: Array, format: Format, axis: int, chosen: Options, amax: float | None = None) -> ErrorSums:
    """Return what :func:`fewbits.kernels.fake_quantize` does to ``x``, without keeping what it gives.

    Values of 16 bits are measured against their results in float32. Those that are not finite count as zeros.

    Raises:
        ArgumentError: x has no such axis.
        DataError: x holds NaN or infinity, which the options refuse.
    """
    axis = checked_axis(axis, x.ndim)
    if not x.size:
        return ErrorSums()
    lines = _lines(x, axis)
    if chosen.rounding == "stochastic":  # a draw belongs to the place of a value in the whole array
        drawn = _lines(fake_quantize(_given(x, chosen), format, axis, chosen, amax), axis)
        return _in_one(lines, drawn, format, chosen, amax)
    if native.supports_tally(format, chosen, x.dtype):
        found = native.tally(lines, format, chosen, amax, threads=threads())
        if found is not None:
            return found
    return _in_steps(lines, format, chosen, amax)


def _lines(x: Array, axis: int) -> Array:
    """Return the lines of ``x`` along ``axis``, (lines, n) in C order."""
    lines = np.moveaxis(x, axis, -1) if x.ndim else x.reshape(1)
    return np.ascontiguousarray(lines).reshape(-1, lines.shape[-1])


def added_at_once(
    shape: tuple[int, int], format: Format, chosen: Options, dtype: Any
) -> tuple[tuple[int, int], int] | None:
    """Return how a compiled kernel adds up the errors of finite lines, or None where none does.

    Args:
        shape: (lines, n).
        format: any.
        chosen: from :func:`fewbits.kernels.bits.options.options`.
        dtype: of the lines.

    Returns:
        The shape of lines that are added, which are one where they share nothing, and the values of a part,
        as :func:`fewbits.kernels.reference.tally.tally.tally` takes both.
    """
    part = part_of(format)
    if part is None or not native.supports_tally(format, chosen, dtype):
        return None
    is_one = native.joins_lines(format, shape, 1) and not shares_scale(format, "channel")
    return ((1, shape[0] * shape[1]) if is_one else shape), part


def _in_steps(x: Array, format: Format, chosen: Options, amax: float | None) -> ErrorSums:
    """Round, find the limits, and compare: what the compiled kernel does at once."""
    step, sums = max(1, PIECE // x.shape[1]), ErrorSums()
    if amax is None and shares_scale(format, "tensor"):
        # A NaN or infinity anywhere may decide the scale of the tensor, and all values decide a mean: then it
        # is not processed in pieces.
        most, is_finite = largest_finite(x)
        whole = not is_finite or chosen.scale_rule in MEAN_RULES
        amax, step = (None, len(x)) if whole else (most, step)
    for start in range(0, len(x), step):
        piece = x[start : start + step]
        rounded = fake_quantize(_given(piece, chosen), format, 1, chosen, amax)
        sums = sums.add(_in_one(piece, rounded, format, chosen, amax))
    return sums


def _in_one(x: Array, rounded: Array, format: Format, chosen: Options, amax: float | None) -> ErrorSums:
    return tally_values(widened(x), rounded, limits(x, format, 1, chosen, amax))


def _given(x: Array, chosen: Options) -> Array:
    """Return ``x`` as it is rounded; an infinity counts as the largest value of its own dtype."""
    return without_infinity(x) if chosen.nonfinite == "saturate" else widened(x)


def tally_values(x: Array, y: Array, limits: Array | float) -> ErrorSums:
    """Return what became of ``x`` when it was rounded to ``y``.

    Args:
        x: floating point, any shape.
        y: the rounded values, of the same shape.
        limits: the largest magnitude that each value could have kept, broadcastable to x.
    """
    wide = np.result_type(x, y, np.float32)
    return native.tally_values(
        x.astype(wide, copy=False), y.astype(wide, copy=False), limits, threads=threads()
    )
