"""The scale of each block, chosen from its largest magnitude, and the values divided by it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from fewbits.formats import Element, Format, Posit
from fewbits.jax.blocks import largest_of, spread
from fewbits.jax.elements import decode, encode
from fewbits.jax.numbers import (
    I32,
    U32,
    Numbers,
    constant,
    divide,
    from_floats,
    from_magnitude_bits,
    magnitude_bits,
    multiply,
    normalized,
    to_floats,
    where,
)
from fewbits.kernels.bits.options import Options
from fewbits.kernels.bits.scale_rules import SCALE_RULES

_MOST = float(np.finfo(np.float32).max)
_LEAST = float(np.finfo(np.float32).smallest_subnormal)


class Scales(NamedTuple):
    """Unpacked, the block axis last; None for a part that the format lacks."""

    codes: Array | None = None  # uint32, one for each block
    shifts: Array | None = None  # uint32, one for each sub-block
    outer: Array | None = None  # float32


def scaled(x: Numbers, format: Format, options: Options) -> tuple[Scales, Numbers]:
    """Return the scales and ``x`` divided by them; (..., n), as the definition's ``scaled``."""
    scales = format.groups.scales
    if scales is None:
        return Scales(), x
    size, n = scales.size, x.exponent.shape[-1]
    bits = magnitude_bits(x)  # in whose order magnitudes lie
    largest = largest_of(bits, size)
    lost: Any = np.False_
    if options.nonfinite == "block_nan":
        lost = largest_of((~x.is_finite).astype(jnp.uint32), size) > 0
    if scales.power_of_two:
        exponents = _shared_exponent(largest, format.element, scales.element, options)
        codes = (exponents - I32(scales.element.emin)).astype(jnp.uint32)
        shifts = _shifts(bits, exponents, format)
        total = spread(exponents, size, n)
        if shifts is not None and format.groups.shifts is not None:
            total = total - spread(shifts, format.groups.shifts.size, n).astype(jnp.int32)
        exponent = jnp.where(x.significand == 0, x.exponent, x.exponent - total)
        return Scales(_with_nan(codes, lost, scales.element), shifts), x._replace(exponent=exponent)
    codes, outer, divisor = _real_scales(bits, largest, format, options)
    quotient = divide(x, divisor.each(lambda field: spread(field, size, n)))
    if format.element.reals_only:  # of a number the quotient is one, if beyond float32
        most = constant(_MOST, x.exponent)._replace(negative=quotient.negative)
        quotient = where(quotient.is_inf & x.is_finite, most, quotient)
    outers = None if outer is None else to_floats(outer, np.float32)
    return Scales(_with_nan(codes, lost, scales.element), None, outers), quotient


def _with_nan(codes: Array, lost: Any, scale: Element) -> Array:
    return codes if scale.nan_code is None else jnp.where(lost, U32(scale.nan_code), codes)


def _shared_exponent(largest: Array, element: Element, scale: Element, options: Options) -> Array:
    a = from_magnitude_bits(jnp.where(largest > 0, largest, U32(0x3F800000)))
    rule = SCALE_RULES[options.scale_rule](element)
    beyond = a.significand - U32(2**23) >= U32(rule.first(23))
    chosen = a.exponent + I32(rule.plus - element.emax) + beyond.astype(jnp.int32)
    zero = scale.emin if options.zero_block == "smallest" else min(max(0, scale.emin), scale.emax)
    return jnp.where(largest > 0, jnp.clip(chosen, scale.emin, scale.emax), I32(zero))


def _shifts(bits: Array, exponents: Array, format: Format) -> Array | None:
    """Return min(E1 - E2, beta) of each sub-block (Shared Microexponents, section 3.2)."""
    _, scales, shifts, _ = format.groups
    if shifts is None or scales is None:
        return None
    assert isinstance(scales.size, int)
    assert isinstance(shifts.size, int)
    sub = largest_of(bits, shifts.size)
    whole = spread(exponents, scales.size // shifts.size, sub.shape[-1])
    gap = whole - from_magnitude_bits(sub).exponent  # of zeros beyond any shift
    return jnp.clip(gap, 0, format.largest_shift).astype(jnp.uint32)


def _real_scales(
    bits: Array, largest: Array, format: Format, options: Options
) -> tuple[Array, Numbers | None, Numbers]:
    """Return scale codes, outer scales, and what each block is divided by, a float32."""
    _, scales, _, outer = format.groups
    assert scales is not None
    scale, top = scales.element, format.element.max
    biggest = from_magnitude_bits(largest)
    if outer is None:
        codes = _encode_scale(divide(biggest, constant(top, largest)), largest, scale, options)
        return codes, None, decode(scale, codes)
    # Transformer Engine's NVFP4: g = 2688 / amax; scale = E4M3(amax_block (g / 6)); x / (scale / g).
    of_all = largest_of(bits, outer.size)
    gain = divide(constant(scale.max * top, of_all), from_magnitude_bits(of_all))
    gain = where(of_all > 0, _at_most(gain), constant(1.0, of_all))
    share = multiply(gain, constant(float(np.float32(1) / np.float32(top)), of_all))
    codes = _encode_scale(multiply(biggest, share), largest, scale, options)
    divisor = divide(decode(scale, codes), gain)
    divisor = where(divisor.is_zero, constant(_LEAST, codes), divisor)
    return codes, _at_most(divide(constant(1.0, of_all), gain)), divisor


def _at_most(x: Numbers) -> Numbers:
    """Return positive numbers with the largest float32 in the place of infinity."""
    return where(x.is_inf, constant(_MOST, x.exponent), x)


def _encode_scale(wanted: Numbers, largest: Array, scale: Element, options: Options) -> Array:
    codes = encode(scale, wanted, "nearest_even", "saturate", None)
    smallest, one = (
        encode(scale, constant(value, np.zeros(())), "nearest_even", "saturate", None)
        for value in (scale.smallest_subnormal, max(min(1.0, scale.max), scale.smallest_subnormal))
    )
    # A scale that rounds to zero would lose the block; it becomes the smallest nonzero value.
    codes = jnp.where((largest > 0) & (decode(scale, codes).significand == 0), smallest, codes)
    return jnp.where(largest > 0, codes, smallest if options.zero_block == "smallest" else one)


def multiplied(x: Numbers, scales: Scales, format: Format) -> Numbers:
    """Return elements, (..., n), times their scales, exact or rounded once to float32."""
    _, group, shifting, _ = format.groups
    if group is None:
        return x
    assert scales.codes is not None
    n = x.exponent.shape[-1]
    scale = decode(group.element, scales.codes).each(lambda field: spread(field, group.size, n))
    if group.power_of_two:
        total = scale.exponent
        if scales.shifts is not None and shifting is not None:
            total = total - spread(scales.shifts, shifting.size, n).astype(jnp.int32)
        exponent = jnp.where(x.significand == 0, x.exponent, x.exponent + total)
        return x._replace(exponent=exponent, is_nan=x.is_nan | scale.is_nan)
    if scales.outer is None:
        return multiply(x, scale)
    both = _exact_product(x, scale, format.element, group.element)
    return multiply(both, from_floats(scales.outer))


def _exact_product(x: Numbers, scale: Numbers, element: Element, of_scale: Element) -> Numbers:
    """Return a product without any rounding: both significands together have 24 bits at most."""
    of_x, of_both = significand_bits(element), significand_bits(element) + significand_bits(of_scale)
    product = (x.significand >> U32(24 - of_x)) * (scale.significand >> U32(24 - of_both + of_x))
    nan = x.is_nan | scale.is_nan | (x.is_inf & scale.is_zero)
    exponent = x.exponent + scale.exponent + I32(25 - of_both)
    return normalized(x.negative, product, exponent, nan, x.is_inf & ~nan)


def significand_bits(element: Element) -> int:
    """Return how many bits the significands of an element have at most."""
    if element.grid is not None:
        return element.grid.mantissa_bits + 1
    return element.bits if isinstance(element, Posit) else 24
