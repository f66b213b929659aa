"""What a collective has to return, computed in one process from the definition of the formats."""

import math
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import torch

from fewbits.formats import Format
from fewbits.kernels import reference
from fewbits.kernels.bits.options import options
from fewbits.recipes import Codec


def rounded(x: np.ndarray, codec: Codec) -> np.ndarray:
    """Round a run of float32 values by the definition; those left out become zero."""
    out = x
    if codec.density is not None:
        k = math.ceil(Decimal(str(codec.density)) * x.size)
        magnitude = np.abs(x)
        order = np.argsort(-magnitude, kind="stable")  # of equals the first one
        out = np.zeros_like(x)
        kept = np.sort(order[:k])
        out[kept] = _in_format(x[kept], codec) if k else x[kept]
        return out
    return _in_format(out, codec)


def _in_format(x: np.ndarray, codec: Codec) -> np.ndarray:
    if codec.values is None or not x.size:
        return x
    chosen = options(
        codec.values.format,
        rounding=codec.values.rounding,
        scale_rule=codec.values.scale_rule,
        overflow="saturate" if codec.aps else None,
    )
    parts = reference.quantize(x, codec.values.format, chosen)
    return reference.dequantize(parts, codec.values.format, np.float32)


def cut(n: int, size: int, format: Format | None) -> list[slice]:
    """Return which values belong to each process: as many for each, no block cut."""
    unit = 1 if format is None else format.block_size
    blocks = -(-n // unit)
    each = -(-blocks // size) * unit
    return [slice(min(r * each, n), min((r + 1) * each, n)) for r in range(size)]


def power(xs: Sequence[np.ndarray], codec: Codec, times: int) -> float:
    """Return the power of two that APS multiplies by."""
    largest = max((float(np.abs(x).max()) for x in xs if x.size), default=0.0)
    if not codec.aps or not largest:
        return 1.0
    return 2.0 ** (np.floor(np.log2(codec.format.element.max)) - np.ceil(np.log2(largest * times)))


def all_reduced(xs: Sequence[torch.Tensor], codec: Codec, mean: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum or mean of what each rank gives, float32, and the bound on its error, float64."""
    size, given = len(xs), [x.reshape(-1).float().numpy() for x in xs]
    scale = np.float32(power(given, codec, 1 if mean else size))
    scaled = [x * scale for x in given]
    n = scaled[0].size
    sent = [np.empty_like(x) for x in scaled]
    places = [slice(0, n)] if codec.density is not None else cut(n, size, codec.format)
    for place in places:
        for x, out in zip(scaled, sent, strict=True):
            out[place] = rounded(x[place], codec)
    total, carried = np.zeros(n, np.float32), np.zeros(n, np.float32)
    for x in sent:
        now = x - carried if codec.kahan else x
        larger = total + now
        carried = (larger - total) - now
        total = larger
    total = total / np.float32(size) if mean else total
    result = total.copy()
    if codec.density is None:
        for place in places:
            result[place] = rounded(total[place], codec)
    parts = size if mean else 1
    lost = sum(np.abs(s.astype(float) - x) for s, x in zip(sent, scaled, strict=True)) / parts
    sums = size * 2.0**-24 * sum(np.abs(x.astype(float)) for x in sent) / parts
    bound = lost + sums + np.abs(result.astype(float) - total)
    return result / scale, bound / scale
