"""Numbers as integers: what every step here computes on, since XLA may flush and contract floats.

XLA's CPU backend reads subnormal floats as zero and writes zero for them. So a float is taken apart by its
bits at the start, put together by its bits at the end, and only integers of 32 bits lie between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

ZERO_EXPONENT = -4000  # of zero: below the exponent of every other number

I32, U32 = np.int32, np.uint32
_MANTISSA = {np.dtype(np.float32): 23, np.dtype(np.float16): 10, np.dtype(jnp.bfloat16): 7}
_MAX_EXPONENT = {np.dtype(np.float32): 127, np.dtype(np.float16): 15, np.dtype(jnp.bfloat16): 127}


class Numbers(NamedTuple):
    """Real numbers: (-1)^negative x significand x 2^(exponent - 23), and what is not one.

    The significand of a number that is not zero lies in [2^23, 2^24), whatever the exponent.
    """

    negative: Array  # bool
    significand: Array  # uint32; 0 for zero, NaN and infinity
    exponent: Array  # int32
    is_nan: Array  # bool
    is_inf: Array  # bool

    @property
    def is_zero(self) -> Array:
        """Where the number is zero."""
        return (self.significand == 0) & ~self.is_nan & ~self.is_inf

    @property
    def is_finite(self) -> Array:
        """Where it is neither NaN nor infinity."""
        return ~(self.is_nan | self.is_inf)

    def each(self, change: Callable[[Array], Array]) -> Numbers:
        """Return the numbers with ``change`` applied to each field."""
        return Numbers(*map(change, self))


def where(condition: Array, a: Numbers, b: Numbers) -> Numbers:
    """Return ``a`` where the condition holds, else ``b``."""
    return Numbers(*(jnp.where(condition, left, right) for left, right in zip(a, b, strict=True)))


def normalized(
    negative: Array, significand: Array, exponent: Array, is_nan: Any = False, is_inf: Any = False
) -> Numbers:
    """Return numbers of any significands below 2^24, in units of 2^(exponent - 23)."""
    shift = jnp.where(significand == 0, U32(0), lax.clz(significand) - U32(8))
    shape = jnp.shape(significand)
    return Numbers(
        jnp.broadcast_to(jnp.asarray(negative), shape),
        significand << shift,
        jnp.where(significand == 0, I32(ZERO_EXPONENT), exponent - shift.astype(jnp.int32)),
        jnp.broadcast_to(jnp.asarray(is_nan), shape),
        jnp.broadcast_to(jnp.asarray(is_inf), shape),
    )


def from_floats(x: Array) -> Numbers:
    """Return the numbers of float32, bfloat16 or float16 ``x``, from its bits."""
    m = _MANTISSA[x.dtype]
    top = _MAX_EXPONENT[x.dtype]
    width = x.dtype.itemsize * 8
    bits = lax.bitcast_convert_type(x, jnp.uint32 if width == 32 else jnp.uint16).astype(jnp.uint32)
    field = ((bits >> U32(m)) & U32(2 * top + 1)).astype(jnp.int32)
    fraction = bits & U32((1 << m) - 1)
    special = field == 2 * top + 1
    significand = jnp.where(field > 0, fraction | U32(1 << m), fraction)
    return normalized(
        (bits >> U32(width - 1)) == 1,
        jnp.where(special, U32(0), significand),
        jnp.maximum(field, 1) - I32(top) + I32(23 - m),
        special & (fraction != 0),
        special & (fraction == 0),
    )


def to_floats(x: Numbers, dtype: Any) -> Array:
    """Return the numbers rounded to float32, and that to ``dtype``, each time to nearest even.

    Every NaN is the quiet positive one.
    """
    x = round_significand(x, 23, -126)
    dtype = np.dtype(dtype)
    if dtype == np.float32:
        return lax.bitcast_convert_type(_assembled(x, 23, 127), jnp.float32)
    m, top = _MANTISSA[dtype], _MAX_EXPONENT[dtype]
    x = x._replace(is_inf=x.is_inf | (x.is_finite & (x.exponent > 127)))
    half = _assembled(round_significand(x, m, 1 - top), m, top)
    return lax.bitcast_convert_type(half.astype(jnp.uint16), dtype)


def _assembled(x: Numbers, m: int, top: int) -> Array:
    """Return the bits of an IEEE format of m mantissa bits; the numbers are on its grid, or beyond it."""
    emin = 1 - top
    short = jnp.clip(emin - x.exponent, 0, 31).astype(jnp.uint32)  # subnormal by so many bits
    kept = x.significand >> jnp.minimum(U32(23 - m) + short, U32(31))
    field = jnp.where(x.exponent >= emin, x.exponent - I32(emin), 0)
    largest = U32((2 * top + 1) << m)
    beyond = x.is_inf | (x.exponent > top)
    code = jnp.where(beyond, largest, (jnp.minimum(field, 2 * top).astype(jnp.uint32) << U32(m)) + kept)
    sign = x.negative.astype(jnp.uint32) << U32(m + (2 * top + 1).bit_length())
    return jnp.where(x.is_nan, largest | U32(1 << (m - 1)), code | sign)


def largest_finite(dtype: Any) -> float:
    """Return the largest value of float32, bfloat16 or float16."""
    return (2 - 2.0 ** -_MANTISSA[np.dtype(dtype)]) * 2.0 ** _MAX_EXPONENT[np.dtype(dtype)]


def round_significand(x: Numbers, mantissa_bits: int, emin: int) -> Numbers:
    """Return the numbers rounded to nearest even on a float's grid, whose exponent has no upper bound."""
    shift = (I32(23 - mantissa_bits) + jnp.maximum(I32(emin) - x.exponent, 0)).clip(0, 30)
    count = half_even(x.significand, shift.astype(jnp.uint32), jnp.zeros((), jnp.bool_))
    # A count may reach 2^24 where shift is 0 only if it was there before: it was below.
    low = jnp.maximum(x.exponent, I32(emin)) + I32(23 - mantissa_bits)
    back = normalized(x.negative, count, low, x.is_nan, x.is_inf)
    return where(x.is_finite, back, x)


def half_even(significand: Array, shift: Array, sticky: Array) -> Array:
    """Return ``significand / 2**shift`` to nearest even; ``sticky``: something lies below its last bit.

    ``significand`` is below 2^28 and shift at most 30; with ``sticky`` shift is at least 1.
    """
    kept = significand >> shift
    twice = (significand - (kept << shift)) << U32(1)
    half = U32(1) << shift
    up = (twice > half) | ((twice == half) & (sticky | ((kept & U32(1)) == 1)))
    return kept + up.astype(jnp.uint32)


def round_float32(negative: Array, significand: Array, exponent: Array, sticky: Array) -> Numbers:
    """Return (significand, sticky) x 2^exponent rounded to float32; significand in [2^25, 2^28) or 0."""
    bits = I32(32) - lax.clz(significand).astype(jnp.int32)
    shift = jnp.maximum(bits - 24, I32(-149) - exponent)  # at least 2
    count = half_even(significand, shift.clip(0, 30).astype(jnp.uint32), sticky)
    # What is below half of the smallest subnormal, sticky bits included, is zero.
    found = normalized(negative, _renormalized(count), exponent + shift + I32(23) + _carry(count))
    return Numbers(
        found.negative,
        jnp.where(found.exponent > 127, U32(0), found.significand),
        found.exponent,
        found.is_nan,
        found.exponent > 127,
    )


def _carry(count: Array) -> Array:
    return (count >> U32(24)).astype(jnp.int32)


def _renormalized(count: Array) -> Array:
    return count >> (count >> U32(24))


def multiply(a: Numbers, b: Numbers) -> Numbers:
    """Return the float32 product of numbers, rounded once, to nearest even; subnormals are kept."""
    low = U32(0xFFF)
    a1, a0, b1, b0 = a.significand >> 12, a.significand & low, b.significand >> 12, b.significand & low
    middle = a1 * b0 + a0 * b1
    bottom = a0 * b0 + ((middle & low) << U32(12))
    high = a1 * b1 + (middle >> U32(12)) + (bottom >> U32(24))  # the product is high 2^24 + rest
    rest = bottom & U32(0xFFFFFF)
    kept = (high << U32(3)) | (rest >> U32(21))
    found = round_float32(
        a.negative ^ b.negative, kept, a.exponent + b.exponent - I32(46 - 21), (rest & U32(0x1FFFFF)) != 0
    )
    return _special(found, a, b, (a.is_inf & b.is_zero) | (a.is_zero & b.is_inf), a.is_inf | b.is_inf)


def _special(found: Numbers, a: Numbers, b: Numbers, invalid: Array, infinite: Array) -> Numbers:
    nan = a.is_nan | b.is_nan | invalid
    plain = ~nan & ~infinite
    return Numbers(
        found.negative,
        jnp.where(plain, found.significand, U32(0)),
        found.exponent,
        nan,
        ~nan & (infinite | found.is_inf),
    )


def divide(a: Numbers, b: Numbers) -> Numbers:
    """Return the float32 quotient of numbers, rounded once, to nearest even; subnormals are kept.

    The float quotient of the significands only guesses 24 bits; integers correct the guess, so that a backend
    whose division is off by 3 units in the last place gives the same.
    """
    divisor = jnp.maximum(b.significand, U32(1 << 23))
    smaller = a.significand < divisor
    dividend = jnp.where(smaller, a.significand << U32(1), a.significand)
    ratio = dividend.astype(jnp.float32) / divisor.astype(jnp.float32)
    guess = (ratio * np.float32(2**23)).astype(jnp.uint32)
    # Modulo 2^32, which is exact: the rest is a few divisors.
    rest = ((dividend << U32(23)) - guess * divisor).astype(jnp.int32)
    signed = divisor.astype(jnp.int32)
    for _ in range(3):
        less, more = rest < 0, rest >= signed
        guess = guess - less.astype(jnp.uint32) + more.astype(jnp.uint32)
        rest = rest + jnp.where(less, signed, 0) - jnp.where(more, signed, 0)
    kept, left = guess, rest.astype(jnp.uint32)
    for _ in range(2):
        left = left << U32(1)
        bit = left >= divisor
        kept = (kept << U32(1)) | bit.astype(jnp.uint32)
        left = left - jnp.where(bit, divisor, U32(0))
    zero = (a.significand == 0) | b.is_inf
    exponent = a.exponent - b.exponent - smaller.astype(jnp.int32) - I32(25)
    found = round_float32(
        a.negative ^ b.negative,
        jnp.where(zero, U32(0), kept),
        jnp.where(zero, I32(ZERO_EXPONENT), exponent),
        left != 0,
    )
    return _special(found, a, b, (a.is_zero & b.is_zero) | (a.is_inf & b.is_inf), a.is_inf | b.is_zero)


def constant(value: float, like: Any) -> Numbers:
    """Return one float32 number, of the shape of ``like``."""
    fields = _split(np.array([value]))
    return Numbers(*(jnp.broadcast_to(jnp.asarray(field[0]), jnp.shape(like)) for field in fields))


def taken(values: NDArray[np.float64], index: Array) -> Numbers:
    """Return entries of a table of values, each rounded to 24 bits."""
    return Numbers(*(jnp.asarray(field)[index] for field in _split(values)))


def _split(values: NDArray[np.float64]) -> tuple[NDArray[Any], ...]:
    """Return the fields of Numbers for float64 values, each rounded to 24 bits."""
    finite = np.where(np.isfinite(values), values, 0.0)
    fraction, exponent = np.frexp(np.abs(finite))
    significand = np.rint(np.ldexp(fraction, 24))
    carry = significand == 2.0**24
    significand = np.where(carry, 2.0**23, significand)
    return (
        np.signbit(values) & ~np.isnan(values),
        significand.astype(np.uint32),
        np.where(significand == 0, ZERO_EXPONENT, exponent - 1 + carry).astype(np.int32),
        np.isnan(values),
        np.isinf(values),
    )


def magnitude_bits(x: Numbers) -> Array:
    """Return the finite magnitudes that float32 holds as its bits, in whose order they lie; else zero."""
    return jnp.where(
        x.is_finite, _assembled(x._replace(negative=jnp.zeros_like(x.negative)), 23, 127), U32(0)
    )


def from_magnitude_bits(bits: Array) -> Numbers:
    """Return the numbers of :func:`magnitude_bits`."""
    return from_floats(lax.bitcast_convert_type(bits, jnp.float32))
