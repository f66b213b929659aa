"""What the portable operations make of an array, and the definition, or the kernels that equal it."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewbits.formats import Format
from fewbits.kernels import portable
from fewbits.kernels.arrays import conversions
from fewbits.kernels.bits.layout import packed
from fewbits.kernels.bits.options import Options
from fewbits.kernels.bits.reals import rounded_to_dtype, without_infinity
from fewbits.kernels.ops.tensors import NUMPY, array, values
from fewbits.kernels.reference.dequantize.dequantize import dequantize
from fewbits.kernels.reference.quantize.quantize import quantize

Bytes = list[NDArray[np.uint8]]


def as_bytes(parts: Any) -> Bytes:
    """Return arrays or tensors as their bytes, every NaN as the same one."""
    found = []
    for part in parts:
        if part is None:
            continue
        x = part if isinstance(part, torch.Tensor) else torch.from_numpy(part)
        if x.is_floating_point():
            x = torch.where(x.isnan(), torch.nan, x).to(x.dtype)
        found.append(x.reshape(-1).contiguous().view(torch.uint8).numpy())
    return found


def portably(x: torch.Tensor, fmt: Format, axis: int, chosen: Options, amax: float | None = None) -> Bytes:
    """Return the bytes of rounded values, packed parts, and what these mean."""
    rounded = portable.fake_quantize(x, fmt, axis, chosen, amax)
    parts = portable.quantize(x, fmt, axis, chosen, amax)
    assert rounded.shape == x.shape
    assert rounded.dtype == x.dtype
    assert rounded.is_contiguous()
    groups = iter(parts)
    whole = [None if group is None else next(groups) for group in fmt.groups]
    return as_bytes([rounded, *parts, portable.dequantize(whole, fmt, tuple(x.shape), axis, x.dtype)])


def expected(x: torch.Tensor, fmt: Format, axis: int, chosen: Options, amax: float | None = None) -> Bytes:
    """Return the same from the backend of the CPU, which equals the definition."""
    own = array(values(x))
    rounded = torch.empty(x.shape, dtype=x.dtype)
    conversions.fake_quantize(own, fmt, axis, chosen, amax, out=array(rounded))
    q = conversions.quantize(own, fmt, axis, chosen, amax)
    back = torch.empty(x.shape, dtype=x.dtype)
    conversions.dequantize(q, fmt, tuple(x.shape), axis, NUMPY[x.dtype], out=array(back))
    return as_bytes([rounded, *q, back])


def defined(x: torch.Tensor, fmt: Format, chosen: Options) -> Bytes:
    """Return the same from the definition alone, for blocks along the last axis."""
    own = array(values(x))
    wide = without_infinity(own) if chosen.nonfinite == "saturate" else conversions.widened(own)
    parts = quantize(wide, fmt, chosen)
    back = rounded_to_dtype(dequantize(parts, fmt, wide.dtype), own.dtype)
    y = torch.empty(x.shape, dtype=x.dtype)
    array(y)[...] = back
    return as_bytes([y, *packed(parts, fmt), y])


def differing(found: Bytes, wanted: Bytes) -> list[int]:
    """Return which of the results differ, and how often."""
    assert [part.shape for part in found] == [part.shape for part in wanted]
    return [int(np.count_nonzero(a != b)) for a, b in zip(found, wanted, strict=True)]
