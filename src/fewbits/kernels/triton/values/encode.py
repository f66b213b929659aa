"""From values to the codes of one element format: kernels/reference/values/encode.py, for float32.

A code is held as its magnitude and its sign until it is packed: what is rounded and compared with the largest
is the magnitude.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from fewbits.kernels.triton.values.bits import (
    INFINITY,
    bits_of,
    clamp,
    float_of,
    magnitude_of,
    split,
    times_power,
)


@triton.jit
def _goes_up(
    significand: tl.tensor,
    kept: tl.tensor,
    shift: tl.tensor,
    negative: tl.tensor,
    drawn: tl.tensor,
    rounding: tl.constexpr,
    random_bits: tl.constexpr,
) -> Any:
    """Return whether ``kept`` counts one more for the ``shift`` bits of the significand that are dropped."""
    at = tl.minimum(shift, 26)  # of a significand of 24 bits no more than a quarter of a step is left
    dropped = significand - (kept << at)
    if rounding == "nearest_even":
        twice = dropped << 1
        up = (twice > (1 << at)) | ((twice == (1 << at)) & ((kept & 1) == 1))
    elif rounding == "nearest_away":
        up = ((dropped << 1) >= (1 << at)) & (dropped > 0)
    elif rounding == "toward_zero":
        up = dropped < 0
    elif rounding == "up":
        up = (dropped > 0) & (negative == 0)
    elif rounding == "down":
        up = (dropped > 0) & (negative != 0)
    else:
        # The upper bits of what is dropped, and the draw, carry into the last bit that is kept or do not.
        left, right = clamp(random_bits - shift, 0, 31), clamp(shift - random_bits, 0, 31)
        cut = (dropped.to(tl.uint32) << left.to(tl.uint32)) >> right.to(tl.uint32)
        up = cut > (0xFFFFFFFF if random_bits == 32 else 0xFFFF) - drawn
    return up


@triton.jit
def encode_grid(
    magnitude: tl.tensor,
    negative: tl.tensor,
    exponent: tl.tensor,
    drawn: tl.tensor,
    e: tl.constexpr,
    rounding: tl.constexpr,
    random_bits: tl.constexpr,
    overflow: tl.constexpr,
) -> Any:
    """Return (code without sign, whether it is NaN) of a magnitude over ``2**exponent``.

    Args:
        magnitude: bits of float32, without a sign.
        negative: 1 where the value has a minus, 0 elsewhere.
        exponent: of the power of two that divides the magnitude first.
        drawn: the draws of stochastic rounding; anything otherwise.
        e: a Grid.
        rounding: its mode.
        random_bits: of a draw.
        overflow: what becomes of values beyond the largest.
    """
    significand, top = split(magnitude)
    top = top - exponent
    binade = tl.maximum(top, e.emin)
    shift = tl.maximum(23 - e.m + binade - top, 0)
    kept = significand >> tl.minimum(shift, 26)
    up = _goes_up(significand, kept, shift, negative, drawn, rounding, random_bits)
    # A subnormal count is below 2^m and a carry reaches 2^(m+1): in both cases the sum is the right code.
    code = ((tl.minimum(binade, e.emax + 1) - e.emin) << e.m) + kept + up.to(tl.int32)
    limit = tl.where(negative != 0, e.below, e.above)
    infinite = magnitude == INFINITY
    not_a_number = magnitude > INFINITY
    beyond = infinite | ((significand > 0) & ((top > e.emax) | (code > limit)))
    code = tl.where(beyond, limit, code)
    if overflow != "saturate":
        if rounding == "toward_zero":
            further = beyond & infinite
        elif rounding == "up":
            further = beyond & (infinite | (negative == 0))
        elif rounding == "down":
            further = beyond & (infinite | (negative != 0))
        else:
            further = beyond
        if overflow == "inf":
            code = tl.where(further, e.inf, code)
        else:
            not_a_number = not_a_number | further
    return code, not_a_number


@triton.jit
def with_sign(code: tl.tensor, negative: tl.tensor, not_a_number: tl.tensor, e: tl.constexpr) -> Any:
    """Return the code of a Grid as it is packed."""
    if e.sign == "bit":
        signed = (negative != 0) if e.signed_zero else (negative != 0) & (code != 0)
        whole = code | (signed.to(tl.int32) << (e.bits - 1))
    elif e.sign == "twos_complement":
        whole = tl.where(negative != 0, -code, code) & ((1 << e.bits) - 1)
    else:
        whole = code
    if e.nan is not None:
        whole = tl.where(not_a_number, e.nan, whole)
    return whole


@triton.jit
def encode_table(
    magnitude: tl.tensor,
    negative: tl.tensor,
    exponent: tl.tensor,
    drawn: tl.tensor,
    keys: tl.tensor,
    codes: tl.tensor,
    rising: tl.tensor,
    e: tl.constexpr,
    rounding: tl.constexpr,
    random_bits: tl.constexpr,
) -> Any:
    """Return the code of a magnitude over ``2**exponent`` in a Table.

    Args:
        magnitude: bits of float32, without a sign.
        negative: 1 where the value has a minus, 0 elsewhere.
        exponent: of the power of two that divides the magnitude first.
        drawn: the draws of stochastic rounding; anything otherwise.
        keys: where the ordered integers lie from which a value rounds to the next code, in rising order; as
            many as codes but one.
        codes: where the codes of the values lie, in rising order of values.
        rising: where the values lie, float64.
        e: a Table.
        rounding: its mode.
        random_bits: of a draw.
    """
    scaled = _scaled(magnitude, exponent)
    key = tl.where(negative != 0, -scaled, scaled)
    place = tl.zeros_like(key)
    steps: tl.constexpr = e.steps
    for step in tl.static_range(steps):
        last = place + (1 << (steps - 1 - step))
        within = last < e.places
        reached = tl.load(keys + tl.minimum(last, e.places - 1) - 1) <= key
        place = tl.where(within & reached, last, place)
    if rounding == "stochastic":
        # As the definition does it: a quotient of float64.
        low = tl.minimum(place, e.places - 2)
        below, above = tl.load(rising + low), tl.load(rising + low + 1)
        x = float_of(tl.minimum(scaled, INFINITY - 1) | (negative << 31)).to(tl.float64)
        x = tl.minimum(tl.maximum(x, tl.load(rising)), tl.load(rising + e.places - 1))
        one: tl.constexpr = 4294967296.0 if random_bits == 32 else 65536.0
        up = tl.floor((x - below) / (above - below) * one) + drawn.to(tl.float64) >= one
        infinite = (scaled == INFINITY) & (negative == 0)  # beyond a last value of 2^128 too, which is NaN
        place = low + (up | (x == above) | infinite).to(tl.int32)
    code = tl.load(codes + place)
    not_a_number = magnitude > INFINITY
    if e.infinity_is_nan:
        not_a_number = magnitude >= INFINITY
    if e.negative_is_nan:
        not_a_number = not_a_number | ((negative != 0) & (magnitude > 0))
    if e.nan is not None:
        code = tl.where(not_a_number, e.nan, code)
    return code


@triton.jit
def _scaled(magnitude: tl.tensor, exponent: tl.tensor) -> Any:
    """Return a magnitude over ``2**exponent``: finite if it was, and zero only if it was."""
    significand, top = split(magnitude)
    normal = bits_of(significand.to(tl.float32))
    found = times_power(normal, top - 23 - exponent)
    found = tl.where(magnitude > 0, clamp(found, 1, INFINITY - 1), 0)
    return tl.where(magnitude >= INFINITY, INFINITY, found)


@triton.jit
def sign_of(x: tl.tensor) -> Any:
    """Return 1 where float32 has a minus, 0 elsewhere."""
    return (bits_of(x) >> 31) & 1


@triton.jit
def parts_of(x: tl.tensor) -> Any:
    """Return (magnitude, sign) of float32."""
    return magnitude_of(x), sign_of(x)
