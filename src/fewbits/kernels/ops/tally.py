"""What rounding does to the values of a tensor, where it lies: sums and counts of errors."""

from __future__ import annotations

import numpy as np
import torch

from fewbits.formats import Format, shares_scale
from fewbits.kernels import exact_arithmetic, portable
from fewbits.kernels.arrays import tally as arrays
from fewbits.kernels.bits.error_sums import MOST_TOGETHER, ErrorSums
from fewbits.kernels.bits.options import Options
from fewbits.kernels.bits.scale_rules import MEAN_RULES
from fewbits.kernels.ops.backends import is_native
from fewbits.kernels.ops.tensors import NUMPY, array, values
from fewbits.kernels.portable.values.packing import pack
from fewbits.kernels.reference import encode


def tally(x: torch.Tensor, format: Format, axis: int, chosen: Options) -> ErrorSums:
    """Return what :func:`fewbits.kernels.ops.fake_quantize` does to ``x``, without keeping what it gives.

    The bits are those of :func:`fewbits.kernels.tally`. On another device than the CPU the host waits for
    whether all is finite, and for the sums of parts of some thousand values, which it adds.

    Args:
        x: floating point, any shape.
        format: any.
        axis: along which blocks lie, a non-negative index.
        chosen: from :func:`fewbits.kernels.options`.

    Raises:
        DataError: x holds NaN or infinity, which the options refuse.
        DTypeError: x is not floating point.
    """
    if is_native(x):
        return arrays.tally(array(values(x)), format, axis, chosen)
    if not x.numel():
        return ErrorSums()
    own = x.detach() if x.dtype in NUMPY else x.detach().float()
    with exact_arithmetic():
        if chosen.rounding == "stochastic":  # a draw belongs to the place of a value in the whole tensor
            drawn = _lines(_rounded(_given(own, chosen), axis, format, chosen, None), axis)
            return _in_one(_lines(own, axis), drawn, format, chosen, None)
        return _added(_lines(own, axis), format, chosen)


def _lines(x: torch.Tensor, axis: int) -> torch.Tensor:
    """Return the lines of ``x`` along ``axis``, (lines, n) in C order."""
    lines = (x.movedim(axis, -1) if x.ndim else x.reshape(1)).contiguous()
    return lines.reshape(lines.shape[:-1].numel(), lines.shape[-1])


def _added(lines: torch.Tensor, format: Format, chosen: Options) -> ErrorSums:
    """Return the sums of errors of (lines, n) by operations of torch."""
    order = arrays.added_at_once((lines.shape[0], lines.shape[1]), format, chosen, NUMPY[lines.dtype])
    if order is None or not lines.isfinite().all():
        return _in_steps(lines, format, chosen)
    shape, part = order
    wide = lines.float()
    rounded, limits = _rounded(wide, 1, format, chosen, None), _limits(wide, format, chosen, None)
    return _sums(wide, rounded, limits, shape, part)


def _in_steps(x: torch.Tensor, format: Format, chosen: Options) -> ErrorSums:
    """Round, find the limits, and compare, piece by piece: kernels/arrays/tally.py has the order."""
    amax, step, sums = None, max(1, arrays.PIECE // x.shape[1]), ErrorSums()
    if shares_scale(format, "tensor"):
        # A NaN or infinity anywhere may decide the scale of the tensor, and all values decide a mean: then it
        # is not processed in pieces.
        most, is_finite = portable.largest_finite(x)
        whole = not is_finite or chosen.scale_rule in MEAN_RULES
        amax, step = (None, len(x)) if whole else (float(most), step)
    for piece in x.split(step):
        rounded = _rounded(_given(piece, chosen), 1, format, chosen, amax)
        sums = sums.add(_in_one(piece, rounded, format, chosen, amax))
    return sums


def _in_one(
    x: torch.Tensor, rounded: torch.Tensor, format: Format, chosen: Options, amax: float | None
) -> ErrorSums:
    limits = _limits(_given(x, chosen), format, chosen, amax)
    return _sums(_wide(x), rounded, limits, (1, x.numel()), MOST_TOGETHER)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _given(x: torch.Tensor, chosen: Options) -> torch.Tensor:
    """Return ``x`` as it is rounded; an infinity counts as the largest value of its own dtype."""
    top = torch.finfo(x.dtype).max
    return _wide(x).nan_to_num(0.0, top, -top) if chosen.nonfinite == "saturate" else _wide(x)


def _rounded(x: torch.Tensor, axis: int, format: Format, chosen: Options, amax: float | None) -> torch.Tensor:
    y: torch.Tensor = torch.ops.fewbits.fake_quantize(x, axis, format.grammar, chosen.text, chosen.seed, amax)
    return y


def _limits(x: torch.Tensor, format: Format, chosen: Options, amax: float | None) -> torch.Tensor:
    """Return the largest magnitude that each value could have kept, float64, broadcastable to ``x``.

    It is what the largest element stands for in each place.
    """
    element, scales = format.element, format.groups.scales
    if scales is None:
        return x.new_full((1, 1), element.max, dtype=torch.float64)
    parts = torch.ops.fewbits.quantize(x, 1, format.grammar, chosen.text, chosen.seed, amax)
    largest = encode(element, np.array([element.max]), "toward_zero", "saturate", None)
    codes = pack(torch.full(x.shape, int(largest[0]), device=x.device), element.bits)
    rest = iter([codes, *parts[1:]])
    all_parts = [None if group is None else next(rest) for group in format.groups]
    y: torch.Tensor = torch.ops.fewbits.dequantize(
        *all_parts, format.grammar, list(x.shape), 1, torch.float64
    )
    return y


def _sums(
    x: torch.Tensor, y: torch.Tensor, limits: torch.Tensor, shape: tuple[int, int], part: int
) -> ErrorSums:
    """Fetch what became of ``x``, as lines of a shape, and add up its parts one after the other."""
    lines, rounded, most = (t.expand(x.shape).reshape(shape) for t in (x, y, limits))
    sums, largest, counts = portable.tally(lines, rounded, most, part)
    found = torch.cat((sums.flatten(), largest.reshape(1), counts.double())).cpu().tolist()
    signal, noise, relative = np.add.accumulate(np.reshape(found[:-4], (3, -1)), axis=1)[:, -1].tolist()
    nonzero, flushed, saturated = (int(count) for count in found[-3:])
    return ErrorSums(signal, noise, relative, found[-4], nonzero, flushed, saturated)
