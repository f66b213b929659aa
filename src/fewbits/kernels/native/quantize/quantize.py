"""Quantize and fake-quantize by the compiled kernels: one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.formats import Format
from fewbits.kernels.bits.layout import Packed
from fewbits.kernels.bits.options import Options
from fewbits.kernels.bits.reals import largest_finite, widened
from fewbits.kernels.native.jobs.geometry import aligned, steps_of
from fewbits.kernels.native.jobs.kernel_format import kernel_format
from fewbits.kernels.native.jobs.plan import Plan, plan

Array = NDArray[Any]
Lent = Array | tuple[int, ...]
"""What a kernel reads or writes: an array, or what ``kernels/ops/tensors.py`` says of a tensor."""

_LARGEST = largest_finite(np.float32)
_TYPES = frozenset(map(np.dtype, ("float32", "float16", "uint16")))  # uint16: the bits of bfloat16


def supports(format: Format, chosen: Options, dtype: Any) -> bool:
    """Return whether the compiled kernels compute this case."""
    return np.dtype(dtype) in _TYPES and kernel_format(format, chosen) is not None


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
    planned, x = planned_for(x, format, axis, chosen)
    p = format_of_call(planned, x, chosen.seed, amax, threads)
    return _native.fake_quantize(p, planned.where, x, out, threads)


def quantize(
    x: Array, out: Packed, format: Format, axis: int, chosen: Options, amax: float | None, *, threads: int
) -> bool:
    """Write the packed parts of ``x`` into ``out``; return whether x held NaN or infinity.

    Arguments and errors are those of :func:`fake_quantize`, but that ``out`` has parts in C order.
    """
    planned, x = planned_for(x, format, axis, chosen)
    return quantize_lent(planned, x, out, chosen.seed, amax, threads)


def fake_quantize_lent(
    planned: Plan, x: Lent, out: Lent, seed: int, amax: float | None, threads: int
) -> bool:
    """Write ``x``, of the plan's shape and layout, into ``out``; return whether it held NaN or infinity."""
    p = format_of_call(planned, x, seed, amax, threads)
    return _native.fake_quantize(p, planned.where, x, out, threads)[1]


def quantize_lent(
    planned: Plan, x: Lent, out: Sequence[Lent | None], seed: int, amax: float | None, threads: int
) -> bool:
    """Write the packed parts of ``x`` into ``out``; return whether x held NaN or infinity."""
    p = format_of_call(planned, x, seed, amax, threads)
    codes, scales, shifts, outer = out
    assert codes is not None
    return _native.quantize(p, planned.where, x, codes, scales, shifts, outer, threads)[1]


def planned_for(x: Array, format: Format, axis: int, chosen: Options) -> tuple[Plan, Array]:
    """Return the plan for an array, and the array, copied if no kernel can read it where it lies."""
    x = aligned(x)
    planned = plan(format.grammar, chosen.text, x.shape, steps_of(x), axis)
    if planned is None:  # too many axes for a geometry
        x = np.ascontiguousarray(x)
        planned = plan(format.grammar, chosen.text, x.shape, None, axis)
    assert planned is not None
    return planned, x


def format_of_call(planned: Plan, x: Lent, seed: int, amax: float | None, threads: int) -> _native.Format:
    """Return the format with the seed of a call, and the scale that all of ``x`` shares."""
    if not planned.shared:
        return planned.format_of_call(seed, None, False)
    measured, bad = 0.0, False
    if amax is None or planned.nonfinite == "block_nan":
        measured, _, bad = _native.magnitudes(planned.everything, x, threads)
        if bad and planned.nonfinite == "saturate":
            assert isinstance(x, np.ndarray)
            if np.isinf(widened(x)).any():
                measured = largest_finite(x.dtype)  # what stands for infinity
    largest = measured if amax is None else min(amax, _LARGEST)
    return planned.format_of_call(seed, largest, bad and planned.nonfinite == "block_nan")
