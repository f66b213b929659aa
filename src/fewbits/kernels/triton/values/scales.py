"""The scale of a block from its largest magnitude: kernels/reference/values/scales.py, for float32."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from fewbits.kernels.triton.values.bits import INFINITY, clamp, float_of, magnitude_of, split
from fewbits.kernels.triton.values.decode import scale_value
from fewbits.kernels.triton.values.encode import encode_grid

_LARGEST = tl.constexpr(3.4028234663852886e38)
_SMALLEST = tl.constexpr(1)  # bits of 2^-149


@triton.jit
def shared_exponent(largest: tl.tensor, f: tl.constexpr) -> Any:
    """Return the exponent of the scale that the rule chooses for blocks with these largest magnitudes."""
    significand, top = split(largest)
    beyond = ((significand & 0x7FFFFF) >= f.first).to(tl.int32)
    chosen = clamp(top - f.element_emax + f.plus + beyond, f.scale.emin, f.scale.emax)
    return tl.where(largest > 0, chosen, f.of_zeros)


@triton.jit
def shift_of(largest: tl.tensor, exponent: tl.tensor, f: tl.constexpr) -> Any:
    """Return by how many binades groups with these largest magnitudes lie below the scale of their block."""
    _, top = split(largest)
    return tl.where(largest > 0, clamp(exponent - top, 0, f.largest_shift), f.largest_shift)


@triton.jit
def encode_scale(wanted: tl.tensor, largest: tl.tensor, f: tl.constexpr) -> Any:
    """Return the codes of real scales for blocks with these largest magnitudes."""
    zero = tl.zeros_like(largest)
    of_scale: tl.constexpr = f.scale
    code, _ = encode_grid(magnitude_of(wanted), zero, zero, zero, of_scale, "nearest_even", 16, "saturate")
    # A scale that rounds to zero would lose the block; it becomes the smallest nonzero value.
    code = tl.where(code == 0, f.smallest, code)
    return tl.where(largest > 0, code, f.of_zeros)


@triton.jit
def gain_of(largest: tl.tensor, f: tl.constexpr) -> Any:
    """Return (gain, outer scale) for a tensor or channel of this largest magnitude."""
    biggest = float_of(clamp(largest, _SMALLEST, INFINITY - 1))  # zero is not divided by
    gain = tl.div_rn(tl.full(biggest.shape, f.fill, tl.float32), biggest)
    gain = tl.where(largest > 0, tl.minimum(gain, _LARGEST), 1.0)
    return gain, tl.minimum(tl.div_rn(tl.full(biggest.shape, 1.0, tl.float32), gain), _LARGEST)


@triton.jit
def real_scale(largest: tl.tensor, f: tl.constexpr) -> Any:
    """Return (code, divisor) of blocks with these largest magnitudes."""
    top = tl.full(largest.shape, f.element_max, tl.float32)
    code = encode_scale(tl.div_rn(float_of(tl.minimum(largest, INFINITY - 1)), top), largest, f)
    of_scale: tl.constexpr = f.scale
    return code, scale_value(code, of_scale)


@triton.jit
def two_level_scale(largest: tl.tensor, gain: tl.tensor, f: tl.constexpr) -> Any:
    """Return (code, divisor) of blocks below an outer scale; Transformer Engine's NVFP4."""
    one_over_top: tl.constexpr = f.one_over_max
    code = encode_scale(float_of(tl.minimum(largest, INFINITY - 1)) * (gain * one_over_top), largest, f)
    of_scale: tl.constexpr = f.scale
    divisor = tl.div_rn(scale_value(code, of_scale), gain + tl.zeros_like(float_of(largest)))
    return code, float_of(tl.maximum(magnitude_of(divisor), _SMALLEST))
