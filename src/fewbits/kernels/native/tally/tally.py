"""What rounding does to the values of an array, by the compiled kernels: one pass, no rounded value kept."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.formats import Format, shares_scale
from fewbits.kernels.bits.error_sums import MOST_TOGETHER, ErrorSums, part_of
from fewbits.kernels.bits.options import Options
from fewbits.kernels.native.dispatch.isa import active_isa
from fewbits.kernels.native.jobs.geometry import aligned
from fewbits.kernels.native.jobs.packed import joins_lines
from fewbits.kernels.native.quantize.quantize import format_of_call, planned_for, supports

Array = NDArray[Any]


def supports_tally(format: Format, chosen: Options, dtype: Any) -> bool:
    """Return whether :func:`tally` computes this case; stochastic rounding needs the whole array."""
    is_known = chosen.rounding != "stochastic" and part_of(format) is not None
    return is_known and supports(format, chosen, dtype)


def tally(x: Array, format: Format, chosen: Options, amax: float | None, *, threads: int) -> ErrorSums | None:
    """Round the lines of ``x`` and return what that did to the values, or None if one of them is not finite.

    Args:
        x: (lines, n) in C order with blocks along the lines; float32, float16, or uint16 that are the bits of
            bfloat16; at least one value.
        format: a format that :func:`supports_tally` accepts with these options.
        chosen: from :func:`fewbits.kernels.bits.options.options`.
        amax: the largest magnitude of the whole tensor where x is a part of it.
        threads: most threads to use; small arrays use one.
    """
    planned, x = planned_for(x, format, 1, chosen)
    p = format_of_call(planned, x, chosen.seed, amax, threads)
    part, of_line = part_of(format), shares_scale(format, "channel")
    assert part is not None
    n = x.size if joins_lines(format, x.shape, 1) and not of_line else x.shape[1]
    found = _native.tally(p, x, n, part, format.element.max, of_line, threads)
    return None if found[-1] else ErrorSums(*found[:-1])


def tally_values(x: Array, y: Array, limits: Array | float, *, threads: int) -> ErrorSums:
    """Return what became of ``x`` when it was rounded to ``y``; values that are not finite count as zeros.

    Args:
        x: float32 or float64, any shape.
        y: the rounded values, of the same shape and type.
        limits: the largest magnitude that each value could have kept, broadcastable to x.
        threads: most threads to use; small arrays use one.
    """
    active_isa()
    each = np.asarray(limits, np.float64)
    each = each.reshape(1) if each.size == 1 else np.ascontiguousarray(np.broadcast_to(each, x.shape))
    found = _native.tally_pairs(_flat(x), _flat(y), _flat(each), MOST_TOGETHER, threads)
    return ErrorSums(*found[:-1])


def _flat(x: Array) -> Array:
    return aligned(np.ascontiguousarray(x)).reshape(-1)
