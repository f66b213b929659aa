"""Rounding with error feedback: the definition, made of those of its steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.formats import Format
from fewbits.kernels.bits.layout import Parts
from fewbits.kernels.bits.options import Options
from fewbits.kernels.bits.reals import widened, without_infinity
from fewbits.kernels.reference.dequantize.dequantize import dequantize
from fewbits.kernels.reference.quantize.quantize import quantize


def quantize_with_feedback(
    x: NDArray[Any], residual: NDArray[np.float32], format: Format, chosen: Options
) -> tuple[Parts, NDArray[np.float32]]:
    """Return the codes of ``x`` plus the residual of earlier roundings, and what this rounding leaves over.

    The sum and the difference are float32. What is left of a sum that is not finite, or whose code is not, is
    zero.

    Args:
        x: (n,), float32, float16, or uint16 that are the bits of bfloat16.
        residual: (n,).
        format: any, with its blocks along the only axis.
        chosen: from :func:`fewbits.kernels.bits.options.options`.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        v = widened(x) + residual
        given = without_infinity(v) if chosen.nonfinite == "saturate" else v
        parts = quantize(given, format, chosen, None, np.arange(v.size))
        left = v - dequantize(parts, format, np.float32)
    return parts, np.where(np.isfinite(left), left, np.float32(0))
