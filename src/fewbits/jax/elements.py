"""Numbers to codes of one element format, and back: :mod:`fewbits.kernels.reference` on 32-bit integers."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fewbits.formats import Element, Exponent, Fixed, Float, values
from fewbits.jax.numbers import I32, U32, Numbers, normalized, taken
from fewbits.jax.thresholds import reached, steps


def encode(element: Element, x: Numbers, rounding: str, overflow: str, draws: Array | None) -> Array:
    """Return the code of every number, uint32; the rules are those of the definition's ``encode``.

    Args:
        element: the format.
        x: numbers of any shape.
        rounding: one of ``ROUNDINGS``.
        overflow: ``saturate``, ``inf`` or ``nan``; the caller has checked that the format can.
        draws: uniform uint32 of x's shape, when rounding is stochastic.
    """
    match element:
        case Float():
            return _encode_float(element, x, rounding, overflow, draws)
        case Fixed():
            return _encode_fixed(element, x, rounding, draws)
        case Exponent():
            return _encode_exponent(element, x, rounding, overflow, draws)
        case _:  # posits and lists
            return _encode_table(element, x, rounding, draws)


def _drop_bits(
    significand: Array, shift: Array, negative: Array, rounding: str, draws: Array | None
) -> Array:
    """Return ``significand / 2**shift`` rounded to an integer; significand below 2^26, shift from 0 up."""
    cut = jnp.minimum(shift, 30).astype(jnp.uint32)
    kept = significand >> cut
    dropped = significand - (kept << cut)
    twice, half = dropped << U32(1), U32(1) << cut
    if rounding == "nearest_even":
        up = (twice > half) | ((twice == half) & ((kept & U32(1)) == 1))
    elif rounding == "nearest_away":
        up = (twice >= half) & (dropped > 0)
    elif rounding == "up":
        up = (dropped > 0) & ~negative
    elif rounding == "down":
        up = (dropped > 0) & negative
    elif rounding == "stochastic":
        # The 32 bits behind the last one that is kept, plus as many random ones: up where they carry.
        left = jnp.clip(32 - shift, 0, 31).astype(jnp.uint32)
        right = jnp.clip(shift - 32, 0, 31).astype(jnp.uint32)
        behind = jnp.where(shift == 0, U32(0), (dropped << left) >> right)
        assert draws is not None
        up = behind + draws < behind
    else:
        return kept
    return kept + up.astype(jnp.uint32)


def _away_on_overflow(negative: Array, rounding: str) -> Array:
    """Return where a value above the largest becomes infinity (IEEE 754-2019, section 7.4)."""
    if rounding == "toward_zero":
        return jnp.zeros_like(negative)
    if rounding in ("up", "down"):
        return negative if rounding == "down" else ~negative
    return jnp.ones_like(negative)


def _encode_float(f: Float, x: Numbers, rounding: str, overflow: str, draws: Array | None) -> Array:
    m = f.mantissa_bits
    binade = jnp.maximum(x.exponent, I32(f.emin))
    shift = binade - x.exponent + I32(23 - m)
    count = _drop_bits(x.significand, shift, x.negative, rounding, draws)
    # A subnormal count is below 2^m and a carry reaches 2^(m+1): in both cases the sum is the right code.
    place = (jnp.minimum(binade, f.emax + 1) - I32(f.emin)).astype(jnp.uint32)
    code = (place << U32(m)) + count
    lost = 2 if f.special == "fn" and m > 0 else 1
    largest = U32(((f.emax - f.emin) << m) + (2 << m) - lost)
    beyond = (code > largest) | x.is_inf
    further = _away_on_overflow(x.negative, rounding) | x.is_inf
    code = jnp.where(beyond, largest, code)
    if overflow == "inf" and f.inf_code is not None:
        code = jnp.where(beyond & further, U32(f.inf_code), code)
    signed = x.negative if f.signed_zero else x.negative & (code != 0)
    code = jnp.where(signed, code | U32(1 << (f.bits - 1)), code)
    if f.nan_code is None:
        return code
    lost_to_nan = x.is_nan | (beyond & further) if overflow == "nan" else x.is_nan
    return jnp.where(lost_to_nan, U32(f.nan_code), code)


def _encode_fixed(f: Fixed, x: Numbers, rounding: str, draws: Array | None) -> Array:
    # In steps of 2^-frac; from 2^25 steps on every number saturates.
    above = x.exponent + I32(f.frac)
    shift = I32(24) - jnp.minimum(above, 24)
    count = _drop_bits(x.significand << U32(1), shift, x.negative, rounding, draws)
    count = jnp.where(x.is_inf | (above >= 25), U32(1 << 25), count)
    low = round(f.min / f.smallest_normal)
    whole = count.astype(jnp.int32)
    signed = jnp.clip(jnp.where(x.negative, -whole, whole), low, f.steps)
    if f.coding == "sign_magnitude":
        sign = jnp.where(x.negative, U32(1 << (f.bits - 1)), U32(0))
        return jnp.abs(signed).astype(jnp.uint32) | sign
    return signed.astype(jnp.uint32) & U32((1 << f.bits) - 1)


def _encode_exponent(f: Exponent, x: Numbers, rounding: str, overflow: str, draws: Array | None) -> Array:
    # A one-bit significand is always odd, so a tie to even goes up, as in ml_dtypes' float8_e8m0fnu.
    count = _drop_bits(x.significand, jnp.full_like(x.exponent, 23), x.negative, rounding, draws)
    exponent = x.exponent + (count > 1).astype(jnp.int32)
    positive = ~x.negative & (x.significand > 0)
    code = jnp.where(positive, jnp.clip(exponent, f.emin, f.emax), f.emin) + I32(f.bias)
    infinite = x.is_inf & ~x.negative
    below_zero = x.negative & ~x.is_zero
    beyond = infinite | (positive & (exponent > f.emax) & _away_on_overflow(below_zero, rounding))
    code = jnp.where(infinite, f.emax + f.bias, code)
    lost = x.is_nan | below_zero | (beyond if overflow == "nan" else jnp.zeros_like(beyond))
    return jnp.where(lost, f.nan_code, code).astype(jnp.uint32)


def _encode_table(element: Element, x: Numbers, rounding: str, draws: Array | None) -> Array:
    found = steps(element, rounding)
    place = reached(x, found)
    if rounding == "stochastic":
        place = place + _goes_up(element, x, place, draws)
    code = jnp.asarray(found.codes)[jnp.minimum(place, len(found.codes) - 1)]
    return code if element.nan_code is None else jnp.where(x.is_finite, code, U32(element.nan_code))


def _goes_up(element: Element, x: Numbers, place: Array, draws: Array | None) -> Array:
    """Return which numbers are rounded up from the value at ``place``; float arithmetic will do."""
    found = values(element)
    rising = np.sort(found[~np.isnan(found)])
    width = np.append(np.diff(rising), np.inf)
    exponent = np.clip(-np.frexp(width)[1], -120, 120)
    exponent[-1] = 0
    scale = jnp.asarray(np.ldexp(1.0, exponent).astype(np.float32))[place]
    start = jnp.asarray(np.ldexp(rising, exponent).astype(np.float32))[place]
    over = np.where(np.isinf(width), 0.0, 1 / np.ldexp(np.where(np.isinf(width), 1, width), exponent))
    value = lax.bitcast_convert_type(_float_bits(x), jnp.float32)
    fraction = jnp.clip((value * scale - start) * jnp.asarray(over.astype(np.float32))[place], 0, 1)
    # Whole fractions are exact: a value of the format stays.
    bits = jnp.minimum(fraction * np.float32(2**24), np.float32(2**24 - 1)).astype(jnp.uint32) << U32(8)
    assert draws is not None
    inside = ~x.is_nan & ~x.is_inf & (value > jnp.asarray(rising.astype(np.float32))[0])
    return (inside & (bits + draws < bits)).astype(jnp.int32)


def _float_bits(x: Numbers) -> Array:
    field = jnp.clip(x.exponent + 127, 0, 254).astype(jnp.uint32)
    bits = (field << U32(23)) | (x.significand & U32(2**23 - 1))
    bits = jnp.where(field == 0, U32(0), bits)
    return bits | (x.negative.astype(jnp.uint32) << U32(31))


def decode(element: Element, codes: Array) -> Numbers:
    """Return the number of each code; a value of a list is the nearest of 24 bits."""
    c = codes.astype(jnp.uint32)
    if isinstance(element, Float):
        return _decode_float(element, c)
    if isinstance(element, Fixed):
        return _decode_fixed(element, c)
    if isinstance(element, Exponent):
        exponent = c.astype(jnp.int32) - I32(element.bias)
        return normalized(jnp.zeros(c.shape, jnp.bool_), jnp.full_like(c, 1 << 23), exponent)._replace(
            is_nan=c == element.nan_code
        )
    return taken(values(element), c)


def _decode_float(f: Float, c: Array) -> Numbers:
    m = f.mantissa_bits
    field = ((c >> U32(m)) & U32(2**f.exponent_bits - 1)).astype(jnp.int32)
    fraction = c & U32(2**m - 1)
    top = field == 2**f.exponent_bits - 1
    nowhere = jnp.zeros(c.shape, jnp.bool_)
    nan, inf = {
        "ieee": (top & (fraction != 0), top & (fraction == 0)),
        "fn": (top & (fraction == 2**m - 1), nowhere),
        "fnuz": (c == (f.nan_code or 0), nowhere),
    }.get(f.special, (nowhere, nowhere))
    significand = jnp.where(nan | inf, U32(0), fraction + jnp.where(field > 0, U32(2**m), U32(0)))
    exponent = jnp.maximum(field, 1) - I32(f.bias) + I32(23 - m)
    return normalized((c >> U32(f.bits - 1)) == 1, significand, exponent, nan, inf)


def _decode_fixed(f: Fixed, c: Array) -> Numbers:
    sign = (c >> U32(f.bits - 1)) == 1
    if f.coding == "unsigned":
        sign, magnitude = jnp.zeros_like(sign), c
    elif f.coding == "sign_magnitude":
        magnitude = c & U32(2 ** (f.bits - 1) - 1)
    else:
        magnitude = jnp.where(sign, U32(2**f.bits) - c, c)
    return normalized(sign, magnitude, jnp.full(c.shape, 23 - f.frac, jnp.int32))
