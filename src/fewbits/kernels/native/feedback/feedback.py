"""Rounding with error feedback by the compiled kernels: one pass over memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.formats import Format
from fewbits.kernels.bits.layout import Packed
from fewbits.kernels.bits.options import Options
from fewbits.kernels.native.jobs.geometry import one_line
from fewbits.kernels.native.jobs.packed import reading_format
from fewbits.kernels.native.quantize.quantize import format_of_call, planned_for


def quantize_with_feedback(
    x: NDArray[Any] | None,
    residual: NDArray[np.float32],
    out: Packed,
    format: Format,
    chosen: Options,
    *,
    threads: int,
) -> bool:
    """Write the packed parts of ``x + residual`` into ``out``, what rounding leaves over into ``residual``.

    Args:
        x: (n,), float32, float16, or uint16 that are the bits of bfloat16, in C order; None if it was added.
            Where the array shares a scale it has to be: all sums decide about that.
        residual: (n,), overwritten; n above zero.
        out: parts in C order.
        format: a format that :func:`supports` accepts with these options and float32.
        chosen: from :func:`fewbits.kernels.bits.options.options`.
        threads: most threads to use; small arrays use one.

    Returns:
        Whether a sum was NaN or infinite; what ``saturate`` replaced does not count.
    """
    planned, _ = planned_for(residual, format, 0, chosen)
    p = format_of_call(planned, residual, chosen.seed, None, threads)
    where = one_line(residual.size)
    return _native.quantize_with_feedback(p, reading_format(format), where, x, residual, *out, threads)
