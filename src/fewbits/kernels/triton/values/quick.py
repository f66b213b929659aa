"""Rounding by few instructions, of the cases that are asked for most: to nearest even, or by 16 drawn bits.

A magnitude is multiplied by a power of two until its step is that of the element. To nearest: a number
whose last bit is this step is added and taken away again, which rounds once. By draws: below the smallest
binade the magnitude becomes an integer of 16 bits behind the step, above it its bits are one already, to
which what was drawn is added before both are cut. Products that leave the normal numbers lie far below half a
step.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from fewbits.kernels.triton.values.bits import bits_of, clamp, float_of

_FIELD = tl.constexpr(0x7F800000)


@triton.jit
def power_of(k: tl.tensor) -> Any:
    """Return 2^k as float32, for k from -149 to 127."""
    return float_of(tl.where(k >= -126, (k + 127) << 23, 1 << clamp(k + 149, 0, 22)))


@triton.jit
def over_power(v: tl.tensor, exponent: tl.tensor, f: tl.constexpr) -> Any:
    """Return v over 2^exponent, rounded only where it leaves the normal numbers.

    The shift of a group may reach below the smallest scale.
    """
    near = exponent
    if f.per_shift > 0:
        near = tl.maximum(exponent, -127)
    if f.scaling == "power":
        v = v * power_of(-near)
    if f.per_shift > 0:
        v = v * power_of(near - exponent)
    return v


@triton.jit
def times_power_of(v: tl.tensor, exponent: tl.tensor, f: tl.constexpr) -> Any:
    """Return the value v of an element times 2^exponent, rounded once."""
    near = exponent
    if f.per_shift > 0:
        near = tl.maximum(exponent, -127)
        v = v * power_of(exponent - near)
    if f.scaling == "power":
        v = v * power_of(near)
    return v


@triton.jit
def signed_value(
    v: tl.tensor,
    code: tl.tensor,
    negative: tl.tensor,
    not_a_number: tl.tensor,
    exponent: tl.tensor,
    f: tl.constexpr,
) -> Any:
    """Return the magnitude v of a code without sign times 2^exponent, with its sign, or NaN."""
    e: tl.constexpr = f.grid
    minus = (negative != 0) if e.signed_zero else (negative != 0) & (code != 0)
    y = float_of(bits_of(times_power_of(v, exponent, f)) | (minus.to(tl.int32) << 31))
    if e.nan is not None:
        y = tl.where(not_a_number, float("nan"), y)
    return y


@triton.jit
def value_of(code: tl.tensor, f: tl.constexpr) -> Any:
    """Return the float32 of codes without sign."""
    q: tl.constexpr = f.quick
    e: tl.constexpr = f.grid
    return float_of(code << (23 - e.m)) * q.from_code * q.from_code_too


@triton.jit
def round_quickly(v: tl.tensor, negative: tl.tensor, drawn: tl.tensor, f: tl.constexpr) -> Any:
    """Return (code without sign, magnitude) of the element next to magnitudes of float32.

    Args:
        v: magnitudes over their scale; a NaN gives the largest.
        negative: 1 where the value has a minus.
        drawn: 16 bits each, or anything where f rounds to nearest.
        f: a Spec that has a Quick.
    """
    e: tl.constexpr = f.grid
    q: tl.constexpr = f.quick
    limit = q.largest
    if q.largest != q.largest_below:
        limit = tl.where(negative != 0, q.largest_below, q.largest)
    v = tl.where(v < limit, v, limit)
    drop: tl.constexpr = 23 - e.m
    if f.rounding == "stochastic":
        counted = (v * q.to_count).to(tl.int32)
        low = (counted + drawn.to(tl.int32)) >> 16
        by = drawn.to(tl.int32) << (drop - 16) if drop >= 16 else drawn.to(tl.int32) >> (16 - drop)
        high = ((bits_of(v) + by) >> drop) - ((e.emin + 126) << e.m)
        code = tl.where(v < q.smallest_normal, low, high)
        found = value_of(code, f)
    else:
        step = tl.maximum(bits_of(v) & _FIELD, (e.emin + 127) << 23) + (drop << 23)
        found = (v + float_of(step)) - float_of(step)
        code = bits_of(found * q.to_code * q.to_code_too) >> drop
    return code, found
