"""Rounding with error feedback, and its other end: flat arrays that processes exchange and add up."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.formats import Format, shares_scale
from fewbits.kernels import native
from fewbits.kernels.arrays.conversions import dequantize, quantize
from fewbits.kernels.arrays.threads import threads
from fewbits.kernels.bits.layout import Packed
from fewbits.kernels.bits.options import Options, options
from fewbits.kernels.bits.reals import widened
from fewbits.kernels.native import exact_arithmetic

Singles = NDArray[np.float32]


@exact_arithmetic()
def quantize_with_feedback(
    x: NDArray[Any], residual: Singles, format: Format, chosen: Options, out: Packed
) -> None:
    """Write the packed parts of ``x + residual`` into ``out``, what rounding leaves over into ``residual``.

    :mod:`fewbits.kernels.reference.feedback.feedback` defines both.

    Args:
        x: (n,), float32, float16, or uint16 that are the bits of bfloat16, in C order.
        residual: (n,), in C order, overwritten.
        format: any, with its blocks along the only axis.
        chosen: from :func:`fewbits.kernels.bits.options.options`.
        out: parts of the right shapes in C order, overwritten.

    Raises:
        DataError: a sum is not finite and the options refuse that; ``residual`` is then as it was.
    """
    # Refused before the residual is lost: only a pass of its own knows in time.
    if not x.size or chosen.nonfinite == "raise" or not native.supports(format, chosen, residual.dtype):
        _in_steps(x, residual, format, chosen, out)
        return
    added = shares_scale(format, "tensor")
    if added:
        with np.errstate(over="ignore", invalid="ignore"):
            np.add(widened(x), residual, out=residual)
    native.quantize_with_feedback(None if added else x, residual, out, format, chosen, threads=threads())


def _in_steps(x: NDArray[Any], residual: Singles, format: Format, chosen: Options, out: Packed) -> None:
    """Add, round, and compare: what the compiled kernel does at once."""
    with np.errstate(over="ignore", invalid="ignore"):
        v = widened(x) + residual
        quantize(v, format, 0, chosen, out=out)
        left = v - dequantize(out, format, v.shape, 0, np.float32)
    residual[...] = np.where(np.isfinite(left), left, 0)


@exact_arithmetic()
def dequantize_add(q: Packed, format: Format, into: Singles) -> None:
    """Add the values of ``q`` to ``into``, (n,) in C order, each sum rounded to float32 once."""
    if into.size and native.supports(format, options(format), into.dtype):
        native.dequantize(q, into, format, 0, threads=threads(), add=True)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        into += dequantize(q, format, into.shape, 0, np.float32)
