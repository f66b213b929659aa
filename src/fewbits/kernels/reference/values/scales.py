"""The scale of each block: chosen from its largest magnitude, and divided by.

* A power-of-two scale divides exactly, so an element is rounded once.
* A real scale is chosen and divided by in float32 (float64 for float64 input), then the element is rounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.formats import Element, Format, decode
from fewbits.kernels.bits.layout import Parts
from fewbits.kernels.bits.options import Options
from fewbits.kernels.bits.packing import code_dtype
from fewbits.kernels.bits.scale_rules import MEAN_RULES, SCALE_RULES, TWN_THRESHOLD, refuse_amax
from fewbits.kernels.reference.values.blocks import blocks_of, largest_of, spread
from fewbits.kernels.reference.values.encode import encode

Array = NDArray[Any]
Integers = NDArray[np.int64]
Reals = NDArray[np.float64]
Amax = NDArray[np.floating[Any]]  # float32 or float64, finite, > 0


def scaled(
    x: Array, format: Format, options: Options, amax: float | None, divide: bool = True
) -> tuple[Parts, Reals]:
    """Return the scales (codes left empty) and ``x`` divided by them."""
    empty: Array = np.empty(0, np.uint8)
    _, scales, shifting, _ = format.groups
    if scales is None:
        with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN like the others
            return Parts(empty), x.astype(np.float64)
    largest = largest_of(x, scales.size)
    if amax is not None and scales.size == "tensor":
        largest = np.full(largest.shape, amax, x.dtype)
    bad: Array = np.zeros(largest.shape, np.bool_)
    if options.nonfinite == "block_nan":
        bad = np.asarray(blocks_of(~np.isfinite(x), scales.size).any(axis=-1))
    if scales.power_of_two:
        exponents = _shared_exponent(largest, format.element, scales.element, options)
        code = exponents - scales.element.emin
        codes = _with_nan(code, bad, scales.element).astype(code_dtype(scales.bits))
        shifts = _shifts(x, exponents, format)
        if not divide:
            return Parts(empty, codes, shifts), empty.astype(np.float64)
        total = spread(exponents, scales.size, x.shape)
        if shifts is not None and shifting is not None:
            total = total - spread(shifts.astype(np.int64), shifting.size, x.shape)
        return Parts(empty, codes, shifts), _real(_divide_by_power(x, total), x, format.element)
    codes, outer, divisor = _real_scales(x, largest, format, options, amax)
    codes = _with_nan(codes, bad, scales.element)
    if not divide:
        return Parts(empty, codes, None, outer), empty.astype(np.float64)
    # An amax far too small: the element saturates. A signalling NaN is a NaN like the others.
    with np.errstate(over="ignore", invalid="ignore"):
        quotient = x / spread(divisor.astype(x.dtype), scales.size, x.shape)
    if options.scale_rule == "twn":
        beyond = np.abs(x) > spread(TWN_THRESHOLD * mean_of(x, scales.size), scales.size, x.shape)
        quotient = np.where(beyond, np.sign(x), x.dtype.type(0))
    return Parts(empty, codes, None, outer), _real(quotient.astype(np.float64), x, format.element)


def _with_nan(codes: Array, bad: Array, scale: Element) -> Array:
    """Return ``codes`` with the scale's NaN for the blocks that are ``bad``."""
    return codes if scale.nan_code is None else np.where(bad, codes.dtype.type(scale.nan_code), codes)


def _shared_exponent(largest: Array, element: Element, scale: Element, options: Options) -> NDArray[np.int64]:
    some = np.where(largest > 0, largest, largest.dtype.type(1))
    chosen = exponent(some, element, options.scale_rule)
    zero = scale.emin if options.zero_block == "smallest" else min(max(0, scale.emin), scale.emax)
    # A block beyond the largest scale keeps that scale and saturates; one below the smallest loses low bits.
    return np.where(largest > 0, np.clip(chosen, scale.emin, scale.emax), zero)


def floor_log2(a: Amax) -> Integers:
    """Return floor(log2 a) from the bits; subnormals are exact."""
    return np.frexp(a)[1].astype(np.int64) - 1


def exponent(a: Amax, element: Element, rule: str) -> Integers:
    """Return e of every largest magnitude, before it is clamped to what the scale can hold."""
    chosen = SCALE_RULES[rule](element)
    fraction = np.ldexp(np.frexp(a.astype(np.float64))[0] * 2 - 1, 52).astype(np.int64)  # exact
    return np.asarray(floor_log2(a) - element.emax + chosen.plus + (fraction >= chosen.first(52)))


def _shifts(x: Array, exponent: NDArray[np.int64], format: Format) -> Array | None:
    """Return tau = min(E1 - E2, beta) of each sub-block (Shared Microexponents, section 3.2)."""
    _, scales, shifts, _ = format.groups
    if shifts is None:
        return None
    assert scales is not None
    assert isinstance(scales.size, int)
    assert isinstance(shifts.size, int)
    sub = largest_of(x, shifts.size)
    e1 = spread(exponent, scales.size // shifts.size, sub.shape)
    gap = np.where(sub > 0, e1 - floor_log2(sub), format.largest_shift)
    return np.clip(gap, 0, format.largest_shift).astype(np.uint8)


def _divide_by_power(x: Array, exponent: NDArray[np.int64]) -> Reals:
    wide = np.where(np.isfinite(x), x, 0).astype(np.float64)
    with np.errstate(over="ignore"):
        value = np.ldexp(wide, -exponent)
    # A float64 far below the smallest element underflows here; its sign must reach directed rounding.
    value = np.where((value == 0) & (wide != 0), np.copysign(2.0**-1074, wide), value)
    return np.where(np.isfinite(x), value, x)


def _real(quotient: Reals, x: Array, element: Element) -> Reals:
    """Return quotients; of an element that has reals alone, those of finite numbers are finite.

    It would take infinity for no number, and a number beyond its largest is one.
    """
    if not element.reals_only:
        return quotient
    most = np.finfo(np.float64).max
    return np.where(np.isfinite(x), np.clip(quotient, -most, most), quotient)


def _real_scales(
    x: Array, largest: Array, format: Format, options: Options, amax: float | None
) -> tuple[Array, Array | None, NDArray[np.float32]]:
    """Return (scale codes, outer scales, float32 divisor per block)."""
    assert format.groups.scales is not None
    scale, outer = format.groups.scales.element, format.groups.outer
    f32, most = np.float32, np.finfo(np.float32).max
    biggest = np.minimum(largest, most).astype(f32)
    top = f32(format.element.max)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        if options.scale_rule in MEAN_RULES:
            codes = _encode_scale(mean_scale(x, format, options, amax), largest, scale, options)
            return codes, None, decode(scale, codes).astype(f32)
        if outer is None:
            codes = _encode_scale(biggest / top, largest, scale, options)
            return codes, None, decode(scale, codes).astype(f32)
        largest_of_all = largest_of(x, outer.size)
        if amax is not None and outer.size == "tensor":
            largest_of_all = np.full(largest_of_all.shape, amax, x.dtype)
        # Transformer Engine's NVFP4: g = 2688 / amax; scale = E4M3(amax_block (g / 6)); x / (scale / g).
        gain = f32(scale.max * format.element.max) / np.minimum(largest_of_all, most).astype(f32)
        gain = np.where(largest_of_all > 0, np.minimum(gain, most), f32(1))
        codes = _encode_scale(biggest * (gain * (f32(1) / top)), largest, scale, options)
        divisor = np.maximum(decode(scale, codes).astype(f32) / gain, np.finfo(f32).smallest_subnormal)
        return codes, np.minimum(f32(1) / gain, most), divisor


def mean_scale(x: Array, format: Format, options: Options, amax: float | None) -> NDArray[np.float32]:
    """Return the scales of MEAN_RULES: means in float64, rounded to float32."""
    refuse_amax(options.scale_rule, amax)
    assert format.groups.scales is not None
    size = format.groups.scales.size
    mean = mean_of(x, size)
    if options.scale_rule == "twn":
        magnitude = np.abs(x.astype(np.float64))
        beyond = magnitude > spread(TWN_THRESHOLD * mean, size, x.shape)
        count = blocks_of(beyond, size).sum(axis=-1)
        mean = blocks_of(np.where(beyond, magnitude, 0), size).sum(axis=-1) / np.maximum(count, 1)
    return np.minimum(mean, np.finfo(np.float32).max).astype(np.float32)


def mean_of(x: Array, size: int | str) -> Reals:
    """Return the mean magnitude of each block, (..., blocks), in float64."""
    count = x.size if size == "tensor" else blocks_of(np.ones(x.shape[-1]), size).sum(axis=-1)
    return np.asarray(blocks_of(np.abs(x.astype(np.float64)), size).sum(axis=-1) / np.maximum(count, 1))


def _encode_scale(wanted: NDArray[np.float32], largest: Array, scale: Element, options: Options) -> Array:
    codes = encode(scale, wanted.astype(np.float64), "nearest_even", "saturate", None)
    smallest = encode(scale, np.full(1, scale.smallest_subnormal), "nearest_even", "saturate", None)
    nearest_one = max(min(1.0, scale.max), scale.smallest_subnormal)  # which is never the scale zero
    one = encode(scale, np.full(1, nearest_one), "nearest_even", "saturate", None)
    # A scale that rounds to zero would lose the block; it becomes the smallest nonzero value.
    codes = np.where((largest > 0) & (decode(scale, codes) == 0), smallest, codes)
    zero = smallest if options.zero_block == "smallest" else one
    return np.where(largest > 0, codes, zero).astype(code_dtype(scale.bits))
