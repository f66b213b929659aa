"""Operations on NumPy arrays, any axis; each takes the fastest backend that equals the definition."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.formats import Block, Format
from fewbits.kernels import native, reference
from fewbits.kernels.layout import Packed, packed, unpacked
from fewbits.kernels.options import Options, has_scale_rule, options

Array = NDArray[Any]

__all__ = [
    "Options",
    "Packed",
    "dequantize",
    "fake_quantize",
    "has_scale_rule",
    "limits",
    "options",
    "quantize",
]

_CHUNK = 1 << 18  # values worked on at once: the definition needs some twenty times their bytes


def quantize(x: Array, fmt: Format, axis: int, chosen: Options, amax: float | None = None) -> Packed:
    """Return packed codes and scales with the block axis last; see :func:`reference.quantize`."""
    lines = _last(x, axis)
    return packed(reference.quantize(lines, fmt, chosen, amax, _positions(x, axis, chosen)), fmt)


def dequantize(q: Packed, fmt: Format, shape: tuple[int, ...], axis: int, dtype: Any) -> Array:
    """Return the values of ``q`` in an array of ``shape``."""
    return _restored(reference.dequantize(unpacked(q, fmt, shape, axis), fmt, dtype), shape, axis)


def fake_quantize(x: Array, fmt: Format, axis: int, chosen: Options, amax: float | None = None) -> Array:
    """Return ``x`` rounded to ``fmt``: the values of :func:`quantize`, in x's dtype and shape."""
    lines = _last(x, axis)
    if native.supports(fmt, chosen, x.dtype):
        return _restored(native.fake_quantize(lines, fmt, chosen, threads=threads()), x.shape, axis)
    out = np.empty(lines.shape, x.dtype)
    positions = _positions(x, axis, chosen)
    pieces = _chunks(lines)
    if amax is None and _per_tensor(fmt):
        # A NaN or an infinity anywhere may decide the scale of the whole tensor: then it is worked on whole.
        amax = largest(x) if np.isfinite(x).all() else None
        pieces = pieces if amax is not None else iter([slice(None)])
    for rows in pieces:
        if native.supports_real_scale(fmt, chosen, x.dtype):
            out[rows] = native.fake_quantize_real_scale(lines[rows], fmt, chosen, amax, threads=threads())
            continue
        here = None if positions is None else positions[rows]
        parts = reference.quantize(lines[rows], fmt, chosen, amax, here)
        out[rows] = reference.dequantize(parts, fmt, x.dtype)
    return _restored(out, x.shape, axis)


def limits(x: Array, fmt: Format, axis: int, chosen: Options, amax: float | None = None) -> Array:
    """Return the largest magnitude each value could have kept, broadcastable to ``x``."""
    found = reference.limits(_last(x, axis), fmt, chosen, amax)
    return np.moveaxis(found, -1, axis) if x.ndim else found.reshape(())


def largest(x: Array) -> float:
    """Return the largest magnitude of a finite ``x``; zero where it is empty."""
    return float(max(x.max(initial=0), -x.min(initial=0)))


def threads() -> int:
    """Return how many threads a kernel may use: torch's setting where torch is in use, else every core."""
    torch = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch is not None else os.cpu_count() or 1


def _per_tensor(fmt: Format) -> bool:
    return isinstance(fmt, Block) and "tensor" in (fmt.size, fmt.outer_size)


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
