"""The definition of every format: numbers to codes and scales, and back.

Blocks lie along the last axis here; :mod:`fewbits.kernels` moves other axes there. A last block that is not
full is a block of fewer values. What is exact and what rounds:

* a power-of-two scale divides exactly, so an element is rounded once;
* a real scale is chosen and divided by in float32 (float64 for float64 input), then the element is rounded;
* decoding multiplies in float64, which is exact, and rounds once, to the output dtype; a product beyond the
  output dtype becomes infinity as in any conversion (OCP MX v1.0, section 5.1, leaves it to the
  implementation).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.errors import DataError
from fewbits.formats import Bdr, Block, Element, Exponent, Format, decode
from fewbits.kernels.options import Options
from fewbits.kernels.reference.encode import code_dtype, encode, nan_code
from fewbits.kernels.reference.scale_rules import exponent as scale_exponent
from fewbits.kernels.reference.scale_rules import floor_log2
from fewbits.kernels.reference.threefry import draws as draw

Array = NDArray[Any]
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Parts:
    """The codes of an array and of its scales, unpacked: one unsigned integer each."""

    codes: Array  # (..., n)
    scales: Array | None = None  # (..., ceil(n / size)); (..., 1) per channel; (1, ..., 1) per tensor
    shifts: Array | None = None  # BDR microexponents, (..., ceil(n / k2)); None where d2 = 0
    outer: Array | None = None  # float32 outer scales, (..., 1) per channel or (1, ..., 1) per tensor


def quantize(
    x: Array, fmt: Format, options: Options, amax: float | None = None, positions: Array | None = None
) -> Parts:
    """Return the codes and scales of ``x``.

    Args:
        x: (..., n), float32 or float64, at least one dimension.
        fmt: any format.
        options: every choice, from :func:`fewbits.kernels.options.options`.
        amax: the largest magnitude of the whole tensor where x is a part of it; a per-tensor scale is chosen
        from it.
        positions: index of each value in the user's array, of x's shape; stochastic rounding draws by it.

    Raises:
        DataError: x holds NaN or infinity and ``options.nonfinite`` is ``raise``.
    """
    x = without_nonfinite(x, fmt, options)
    draws = None
    if options.rounding == "stochastic":
        where = np.arange(x.size).reshape(x.shape) if positions is None else positions
        draws = draw(where, options.seed)
    if isinstance(fmt, Element):
        with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN like the others
            wide = x.astype(np.float64)
        return Parts(encode(fmt, wide, options.rounding, options.overflow, draws))
    assert isinstance(fmt, Block | Bdr)
    parts, value = scaled(x, fmt, options, amax)
    codes = encode(fmt.element, value, options.rounding, options.overflow, draws)
    assert parts.scales is not None
    if fmt.scale.has_nan:
        lost = _spread(parts.scales == nan_code(fmt.scale), fmt.size, x.shape)
        codes = np.where(lost, codes.dtype.type(0), codes)
    return Parts(codes, parts.scales, parts.shifts, parts.outer)


def dequantize(parts: Parts, fmt: Format, dtype: Any = np.float32) -> Array:
    """Return the values of ``parts``, of the codes' shape, each rounded once to ``dtype``."""
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(fmt, Element):
            return decode(fmt, parts.codes).astype(dtype)
        assert isinstance(fmt, Block | Bdr)
        return (decode(fmt.element, parts.codes) * multiplier(parts, fmt)).astype(dtype)


def limits(x: Array, fmt: Format, options: Options, amax: float | None = None) -> Array:
    """Return the largest magnitude that each value of ``x`` could have kept; beyond it, it saturates.

    Returns:
        float64, of x's shape or broadcastable to it.
    """
    if isinstance(fmt, Element):
        return np.full((1,) * x.ndim, fmt.max)
    assert isinstance(fmt, Block | Bdr)
    x = without_nonfinite(x, fmt, options)
    parts, _ = scaled(x, fmt, options, amax, divide=False)
    whole = Parts(np.empty(x.shape, np.uint8), parts.scales, parts.shifts, parts.outer)
    return fmt.element.max * multiplier(whole, fmt)


def without_nonfinite(x: Array, fmt: Format, options: Options) -> Array:
    """Return ``x`` with NaN and infinity replaced or refused where ``options.nonfinite`` says so."""
    if options.nonfinite == "saturate":
        return np.nan_to_num(x, nan=0.0)  # infinity becomes the dtype's largest value, NaN zero
    if options.nonfinite == "raise" and not np.isfinite(x).all():
        nan, inf = int(np.isnan(x).sum()), int(np.isinf(x).sum())
        raise DataError(
            f"the array holds {nan} NaN and {inf} infinities, and nonfinite='raise' refuses them for {fmt}; "
            "clean the data, or pass nonfinite='saturate'"
        )
    return x


def _blocks_of(values: Array, size: int | str) -> Array:
    """Return ``values`` grouped as (..., blocks, size); zeros fill the last block and change no maximum."""
    if size == "tensor":
        return values.reshape((1,) * values.ndim + (-1,)) if values.ndim else values.reshape(1, -1)
    n = values.shape[-1]
    width = n if isinstance(size, str) else size
    count = 1 if isinstance(size, str) else -(-n // width)
    padded = np.zeros((*values.shape[:-1], count * width), values.dtype)
    padded[..., :n] = values
    return padded.reshape(*values.shape[:-1], count, width)


def _spread(per_block: Array, size: int | str, shape: tuple[int, ...]) -> Array:
    """Return ``per_block`` repeated so that it broadcasts against ``shape``."""
    if isinstance(size, str):
        return per_block
    return np.repeat(per_block, size, axis=-1)[..., : shape[-1]]


def _largest(x: Array, size: int | str) -> Array:
    """Return the largest finite magnitude of each block, (..., blocks)."""
    magnitude = np.abs(np.where(np.isfinite(x), x, x.dtype.type(0)))
    return np.asarray(_blocks_of(magnitude, size).max(axis=-1, initial=0))


def scaled(
    x: Array, fmt: Block | Bdr, options: Options, amax: float | None, divide: bool = True
) -> tuple[Parts, Reals]:
    """Return the scales (codes left empty) and ``x`` divided by them."""
    empty: Array = np.empty(0, np.uint8)
    largest = _largest(x, fmt.size)
    if amax is not None and fmt.size == "tensor":
        largest = np.full(largest.shape, amax, x.dtype)
    bad: Array = np.zeros(largest.shape, np.bool_)
    if options.nonfinite == "block_nan":
        bad = np.asarray(_blocks_of(~np.isfinite(x), fmt.size).any(axis=-1))
    if isinstance(fmt.scale, Exponent):
        exponent = _shared_exponent(largest, fmt, options)
        codes = np.where(bad, nan_code(fmt.scale), exponent + fmt.scale.bias).astype(
            code_dtype(fmt.scale.bits)
        )
        shifts = _shifts(x, exponent, fmt) if isinstance(fmt, Bdr) and fmt.d2 else None
        if not divide:
            return Parts(empty, codes, shifts), empty.astype(np.float64)
        total = _spread(exponent, fmt.size, x.shape)
        if isinstance(fmt, Bdr) and shifts is not None:
            total = total - _spread(shifts.astype(np.int64), fmt.k2, x.shape)
        return Parts(empty, codes, shifts), _divide_by_power(x, total)
    assert isinstance(fmt, Block)
    codes, outer, divisor = _real_scales(x, largest, fmt, options, amax)
    if bad.any():
        codes = np.where(bad, codes.dtype.type(nan_code(fmt.scale)), codes)
    if not divide:
        return Parts(empty, codes, None, outer), empty.astype(np.float64)
    with np.errstate(over="ignore"):  # an amax far too small; the element saturates
        quotient = x / _spread(divisor.astype(x.dtype), fmt.size, x.shape)
    return Parts(empty, codes, None, outer), quotient.astype(np.float64)


def _shared_exponent(largest: Array, fmt: Block | Bdr, options: Options) -> NDArray[np.int64]:
    scale = fmt.scale
    assert isinstance(scale, Exponent)
    some = np.where(largest > 0, largest, largest.dtype.type(1))
    chosen = scale_exponent(some, fmt.element, options.scale_rule)
    zero = scale.emin if options.zero_block == "smallest" else min(max(0, scale.emin), scale.emax)
    # A block beyond the largest scale keeps that scale and saturates; one below the smallest loses low bits.
    return np.where(largest > 0, np.clip(chosen, scale.emin, scale.emax), zero)


def _shifts(x: Array, exponent: NDArray[np.int64], fmt: Bdr) -> Array:
    """Return tau = min(E1 - E2, beta) of each sub-block (Shared Microexponents, section 3.2)."""
    sub = _largest(x, fmt.k2)
    e1 = _spread(exponent, fmt.k1 // fmt.k2, sub.shape)
    gap = np.where(sub > 0, e1 - floor_log2(sub), fmt.largest_shift)
    return np.clip(gap, 0, fmt.largest_shift).astype(np.uint8)


def _divide_by_power(x: Array, exponent: NDArray[np.int64]) -> Reals:
    wide = np.where(np.isfinite(x), x, 0).astype(np.float64)
    with np.errstate(over="ignore"):
        value = np.ldexp(wide, -exponent)
    # A float64 far below the smallest element underflows here; its sign must reach directed rounding.
    value = np.where((value == 0) & (wide != 0), np.copysign(2.0**-1074, wide), value)
    return np.where(np.isfinite(x), value, x)


def _real_scales(
    x: Array, largest: Array, fmt: Block, options: Options, amax: float | None
) -> tuple[Array, Array | None, NDArray[np.float32]]:
    """Return (scale codes, outer scales, float32 divisor per block)."""
    f32, most = np.float32, np.finfo(np.float32).max
    biggest = np.minimum(largest, most).astype(f32)
    top = f32(fmt.element.max)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        if fmt.outer is None:
            codes = _encode_scale(biggest / top, largest, fmt.scale, options)
            return codes, None, decode(fmt.scale, codes).astype(f32)
        assert fmt.outer_size is not None
        whole = _largest(x, fmt.outer_size)
        if amax is not None and fmt.outer_size == "tensor":
            whole = np.full(whole.shape, amax, x.dtype)
        # Transformer Engine's NVFP4: g = 2688 / amax; scale = E4M3(amax_block (g / 6)); x / (scale / g).
        gain = f32(fmt.scale.max * fmt.element.max) / np.minimum(whole, most).astype(f32)
        gain = np.where(whole > 0, np.minimum(gain, most), f32(1))
        codes = _encode_scale(biggest * (gain * (f32(1) / top)), largest, fmt.scale, options)
        divisor = np.maximum(decode(fmt.scale, codes).astype(f32) / gain, np.finfo(f32).smallest_subnormal)
        return codes, np.minimum(f32(1) / gain, most), divisor


def _encode_scale(wanted: NDArray[np.float32], largest: Array, scale: Element, options: Options) -> Array:
    codes = encode(scale, wanted.astype(np.float64), "nearest_even", "saturate", None)
    smallest = encode(scale, np.full(1, scale.smallest_subnormal), "nearest_even", "saturate", None)
    one = encode(scale, np.full(1, min(1.0, scale.max)), "nearest_even", "saturate", None)
    # A scale that rounds to zero would lose the block; it takes the smallest value there is.
    codes = np.where((largest > 0) & (decode(scale, codes) == 0), smallest, codes)
    zero = smallest if options.zero_block == "smallest" else one
    return np.where(largest > 0, codes, zero).astype(code_dtype(scale.bits))


def multiplier(parts: Parts, fmt: Block | Bdr) -> Reals:
    """Return what each element is multiplied by, broadcastable to the codes."""
    assert parts.scales is not None
    shape = parts.codes.shape
    total = _spread(decode(fmt.scale, parts.scales), fmt.size, shape)
    if parts.shifts is not None:
        assert isinstance(fmt, Bdr)
        total = np.ldexp(total, -_spread(parts.shifts.astype(np.int64), fmt.k2, shape))
    return total * parts.outer.astype(np.float64) if parts.outer is not None else total
