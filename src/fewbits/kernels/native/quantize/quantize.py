"""Quantize and fake-quantize by the compiled kernels: one pass over memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.formats import Format, shares_scale
from fewbits.kernels.bits.layout import Packed
from fewbits.kernels.bits.options import Options
from fewbits.kernels.bits.reals import largest_finite, widened
from fewbits.kernels.native.dispatch.isa import active_isa
from fewbits.kernels.native.jobs.geometry import aligned, geometry, is_dense, one_line
from fewbits.kernels.native.jobs.kernel_format import kernel_format
from fewbits.kernels.native.jobs.packed import joins_lines
from fewbits.kernels.native.values.magnitudes import magnitudes

Array = NDArray[Any]

_TYPES = ("float32", "float16", "uint16")  # uint16: the bits of bfloat16


def supports(format: Format, chosen: Options, dtype: Any) -> bool:
    """Return whether the compiled kernels compute this case."""
    return np.dtype(dtype).name in _TYPES and kernel_format(format, chosen) is not None


def fake_quantize(
    x: Array, out: Array, format: Format, axis: int, chosen: Options, amax: float | None, *, threads: int
) -> tuple[str, bool]:
    """Write ``x`` rounded to ``format`` into ``out``.

    Args:
        x: float32, float16, or uint16 that are the bits of bfloat16; any shape and strides.
        out: of x's shape and one of those types, in C order; does not overlap x.
        format: a format that :func:`supports` accepts with these options.
        axis: along which blocks lie, from the front.
        chosen: from :func:`fewbits.kernels.bits.options.options`.
        amax: the largest magnitude of the whole tensor where x is a part of it.
        threads: most threads to use; small arrays use one.

    Returns:
        The instruction set that ran, and whether x held NaN or infinity; what ``saturate`` replaced does not
        count.

    Raises:
        ArgumentError: ``FEWBITS_ISA`` names an instruction set that cannot run.
    """
    p, x, where = prepared(x, format, axis, chosen, amax, threads, packed=False)
    return _native.fake_quantize(p, where, x, out, threads)


def quantize(
    x: Array, out: Packed, format: Format, axis: int, chosen: Options, amax: float | None, *, threads: int
) -> bool:
    """Write the packed parts of ``x`` into ``out``; return whether x held NaN or infinity.

    Arguments and errors are those of :func:`fake_quantize`, but that ``out`` has parts in C order.
    """
    p, x, where = prepared(x, format, axis, chosen, amax, threads, packed=True)
    _, nonfinite = _native.quantize(p, where, x, *out, threads)
    return nonfinite


def prepared(
    x: Array, format: Format, axis: int, chosen: Options, amax: float | None, threads: int, *, packed: bool
) -> tuple[_native.Format, Array, _native.Geometry]:
    """Return what a kernel takes: the format with its seed and shared scale, the array, its geometry."""
    active_isa()  # refuses a wrong FEWBITS_ISA with a message for people
    p, x = kernel_format(format, chosen), aligned(x)
    assert p is not None
    shared = shares_scale(format, "tensor")
    if chosen.rounding == "stochastic" or shared:
        p = _native.Format(p)
        p.seed = chosen.seed
    if shared:
        measured, bad = 0.0, False
        if amax is None or chosen.nonfinite == "block_nan":
            measured, _, bad = magnitudes(x, threads=threads)
            if chosen.nonfinite == "saturate" and bad and np.isinf(widened(x)).any():
                measured = largest_finite(x.dtype)  # what stands for infinity
        p.whole_known, p.whole = True, measured if amax is None else amax
        p.whole_bad = bad and chosen.nonfinite == "block_nan"
    where = one_line(x.size) if is_dense(x) and joins_lines(format, x.shape, axis) else geometry(x, axis)
    if where is None:
        x = np.ascontiguousarray(x)
        where = geometry(x, axis)
    assert where is not None
    return p, x, where
