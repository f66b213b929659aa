"""Quantize, dequantize and fake-quantize arrays along any axis.

Arrays are float64, float32, float16, or uint16 that holds the bits of bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from fewbits.errors import DataError
from fewbits.formats import Format, shares_scale
from fewbits.kernels import native, reference
from fewbits.kernels.arrays import lent
from fewbits.kernels.arrays.mean_scales import coded, round_by_mean, values_of
from fewbits.kernels.arrays.threads import threads
from fewbits.kernels.arrays.values import largest
from fewbits.kernels.arrays.wide import fake_quantize_wide
from fewbits.kernels.bits.axes import checked_axis
from fewbits.kernels.bits.layout import Packed, empty, packed, unpacked
from fewbits.kernels.bits.memory import empty_aligned
from fewbits.kernels.bits.options import Options, options
from fewbits.kernels.bits.reals import rounded_to_dtype, widened, without_infinity
from fewbits.kernels.bits.scale_rules import MEAN_RULES
from fewbits.kernels.native import exact_arithmetic

Array = NDArray[Any]

_CHUNK = 1 << 18  # values processed at once: the definition needs about twenty times their bytes


@exact_arithmetic()
def quantize(
    x: Array, format: Format, axis: int, chosen: Options, amax: float | None = None, out: Packed | None = None
) -> Packed:
    """Return packed codes and scales with the block axis last; see :func:`reference.quantize`.

    ``out``, if given, has parts of the right shapes in C order, which are overwritten with the result.

    Raises:
        ArgumentError: x has no such axis.
        DataError: x holds NaN or infinity, which the options refuse.
    """
    axis = checked_axis(axis, x.ndim)
    if x.size and native.supports(format, chosen, x.dtype):
        whole = empty(format, x.shape, axis) if out is None else out
        nonfinite = native.quantize(x, whole, format, axis, chosen, amax, threads=threads())
        if nonfinite:
            refuse(x, format, chosen.nonfinite)
        return whole
    lines, positions = _last(_finite(x, chosen), axis), _positions(x, axis, chosen)
    by_mean = None if amax is not None else round_by_mean(lines, format, chosen)
    parts = (
        reference.quantize(lines, format, chosen, amax, positions)
        if by_mean is None
        else coded(*by_mean, format)
    )
    found = packed(parts, format)
    for part, values in zip(out or (), found, strict=out is not None):
        if part is not None and values is not None:
            part[...] = values
    return found if out is None else out


@exact_arithmetic()
def dequantize(
    q: Packed,
    format: Format,
    shape: tuple[int, ...],
    axis: int,
    dtype: npt.DTypeLike,
    out: Array | None = None,
) -> Array:
    """Return the values of ``q`` in a new array of ``shape``, or in ``out``.

    Raises:
        ArgumentError: the shape has no such axis.
    """
    dtype, axis = np.dtype(dtype), checked_axis(axis, len(shape))
    whole = empty_aligned(shape, dtype) if out is None else out
    if whole.size and native.supports(format, options(format), dtype):
        native.dequantize(q, whole, format, axis, threads=threads())
        return whole
    wide = np.float64 if dtype == np.float64 else np.float32
    lines = reference.dequantize(unpacked(q, format, shape, axis), format, wide)
    whole[...] = rounded_to_dtype(_restored(lines, shape, axis), dtype)
    return whole


@exact_arithmetic()
def fake_quantize(
    x: Array, format: Format, axis: int, chosen: Options, amax: float | None = None, out: Array | None = None
) -> Array:
    """Return ``x`` rounded to ``format``: the values of :func:`quantize`, in x's type and shape.

    ``out``, if given, is an array of that type and shape in C order that does not overlap x.

    Raises:
        ArgumentError: x has no such axis.
        DataError: x holds NaN or infinity, which the options refuse.
    """
    axis = checked_axis(axis, x.ndim)
    whole = empty_aligned(x.shape, x.dtype) if out is None else out
    if x.size and native.supports(format, chosen, x.dtype):
        _, nonfinite = native.fake_quantize(x, whole, format, axis, chosen, amax, threads=threads())
        if nonfinite:
            refuse(x, format, chosen.nonfinite)
    else:
        whole[...] = rounded_to_dtype(_by_definition(_finite(x, chosen), format, axis, chosen, amax), x.dtype)
    return whole


def fake_quantize_at_once(
    x: Array, format: str | Format, axis: int, choices: tuple[Any, ...], seed: Callable[[], int], out: Any
) -> Array | None:
    """Return ``x`` rounded by what an earlier call found out; arguments are those of the user.

    ``seed`` is called once, if there is a result. ``out`` is overwritten with it; None for new memory.
    Returned is None where an argument is wrong, or no compiled kernel reads and writes the arrays where they
    lie.
    """
    planned = lent.rounding(format, axis, x.shape, choices) if lent.lends(x) else None
    if planned is None or (out is not None and not lent.takes(out, x)):
        return None
    whole: Array = empty_aligned(x.shape, x.dtype) if out is None else out
    if lent.fake_quantize(planned.plan, x, whole, seed(), None):
        refuse(x, planned.format, planned.plan.nonfinite)
    return whole


@exact_arithmetic()
def limits(x: Array, format: Format, axis: int, chosen: Options, amax: float | None = None) -> Array:
    """Return the largest magnitude each value could have kept, broadcastable to ``x``.

    Raises:
        ArgumentError: x has no such axis.
        DataError: x holds NaN or infinity, which the options refuse.
    """
    axis = checked_axis(axis, x.ndim)
    found = reference.limits(_last(_finite(x, chosen), axis), format, chosen, amax)
    return np.moveaxis(found, -1, axis) if x.ndim else found.reshape(())


def _by_definition(x: Array, format: Format, axis: int, chosen: Options, amax: float | None) -> Array:
    lines, positions = _last(x, axis), _positions(x, axis, chosen)
    out = np.empty(lines.shape, x.dtype)
    pieces = _chunks(lines)
    if chosen.scale_rule in MEAN_RULES and shares_scale(format, "tensor"):
        pieces = iter([slice(None)])
    elif amax is None and shares_scale(format, "tensor"):
        # A NaN or infinity anywhere may decide the scale of the tensor, so it is not processed in pieces.
        amax = largest(x) if np.isfinite(x).all() else None
        pieces = pieces if amax is not None else iter([slice(None)])
    for rows in pieces:
        piece = lines[rows]
        by_mean = None if amax is not None else round_by_mean(piece, format, chosen)
        if by_mean is not None:
            out[rows] = values_of(*by_mean, format)
            continue
        found = fake_quantize_wide(piece, format, chosen, amax) if x.dtype == np.float64 else None
        if found is None:
            here = None if positions is None else positions[rows]
            found = reference.dequantize(
                reference.quantize(piece, format, chosen, amax, here), format, x.dtype
            )
        out[rows] = found
    return _restored(out, x.shape, axis)


def _finite(x: Array, chosen: Options) -> Array:
    """Return ``x`` as the definition takes it; an infinity counts as the largest value of x's own type."""
    return without_infinity(x) if chosen.nonfinite == "saturate" else widened(x)


@exact_arithmetic()
def refuse(x: Array, format: Format, nonfinite: str) -> None:
    """Raise DataError for the first NaN or infinity of ``x``, unless another rule than ``raise`` was chosen.

    Raises:
        DataError: x holds one.
    """
    if nonfinite != "raise":
        return
    reference.without_nonfinite(np.atleast_1d(widened(x)), format, options(format, nonfinite=nonfinite))
    raise DataError(f"the array changed while it was read for {format}; keep it still")


def _last(x: Array, axis: int) -> Array:
    return np.moveaxis(x, axis, -1) if x.ndim else x.reshape(1)


def _restored(lines: Array, shape: tuple[int, ...], axis: int) -> Array:
    return np.moveaxis(lines, -1, axis) if shape else lines.reshape(())


def _positions(x: Array, axis: int, chosen: Options) -> Array | None:
    return _last(np.arange(x.size).reshape(x.shape), axis) if chosen.rounding == "stochastic" else None


def _chunks(lines: Array) -> Iterator[Any]:
    """Yield indices of the first axis that cut ``lines`` into pieces of whole lines."""
    if lines.ndim < 2 or lines.size <= _CHUNK:
        yield slice(None)
        return
    step = max(1, _CHUNK * lines.shape[0] // lines.size)
    for start in range(0, lines.shape[0], step):
        yield slice(start, start + step)
