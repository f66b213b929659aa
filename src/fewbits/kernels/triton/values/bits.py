"""float32 as integers: significand and exponent, multiplication by powers of two, narrower types.

Functions of Triton: arguments are blocks of int32 that hold the bits of float32, without a sign where
they are called magnitudes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


def _rounds_to_bfloat16() -> bool:
    """Return whether the chip does, to nearest even; the interpreter cuts."""
    if triton.knobs.runtime.interpret or torch.version.hip or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability() >= (8, 0)


_ROUNDS = tl.constexpr(_rounds_to_bfloat16())
INFINITY = tl.constexpr(0x7F800000)
NAN = tl.constexpr(0x7FC00000)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_FRACTION = tl.constexpr(0x7FFFFF)
_LEADING = tl.constexpr(0x800000)


@triton.jit
def bits_of(x: tl.tensor) -> Any:
    """Return the bits of float32."""
    return x.to(tl.int32, bitcast=True)


@triton.jit
def float_of(bits: tl.tensor) -> Any:
    """Return the float32 of these bits."""
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def magnitude_of(x: tl.tensor) -> Any:
    """Return the bits of |x|."""
    return bits_of(x) & _MAGNITUDE


@triton.jit
def clamp(x: tl.tensor, low: tl.tensor, high: tl.tensor) -> Any:
    """Return integers within ``low`` to ``high``."""
    return tl.minimum(tl.maximum(x, low), high)


@triton.jit
def split(magnitude: tl.tensor) -> Any:
    """Return (significand, top): the magnitude is ``significand * 2**(top - 23)``.

    The significand has 24 bits, subnormals included, and is 0 for zero, whose top is below all others.
    """
    field = magnitude >> 23
    fraction = magnitude & _FRACTION
    whole = tl.where(field > 0, fraction | _LEADING, fraction)
    # A conversion to float32 shifts the leading one of a subnormal up; no chip flushes integers.
    normal = bits_of(whole.to(tl.float32))
    significand = tl.where(whole > 0, (normal & _FRACTION) | _LEADING, 0)
    return significand, tl.maximum(field, 1) + (normal >> 23) - 277  # 150 and 127: biases of both


@triton.jit
def times_power(magnitude: tl.tensor, k: tl.tensor) -> Any:
    """Return a normal magnitude, or zero, times 2^k; subnormal results are rounded to nearest even."""
    field = (magnitude >> 23) + k
    significand = (magnitude & _FRACTION) | _LEADING
    drop = clamp(1 - field, 1, 25)
    half = (1 << (drop - 1)) - 1 + ((significand >> drop) & 1)  # what makes cutting round to nearest even
    subnormal = (significand + half) >> drop
    number = tl.where(field >= 1, magnitude + (k << 23), subnormal)
    return tl.where(magnitude == 0, 0, tl.where(field >= 255, INFINITY, number))


@triton.jit
def to_float32(x: tl.tensor) -> Any:
    """Return float32, bfloat16 or float16 in float32, which holds all of them."""
    if x.dtype == tl.bfloat16 and not _ROUNDS:
        # The upper half of the bits of float32: the interpreter's own conversion loses subnormals.
        y = float_of(x.to(tl.int16, bitcast=True).to(tl.int32) << 16)
    else:
        y = x.to(tl.float32)
    return y


@triton.jit
def to_dtype(y: tl.tensor, dtype: tl.constexpr) -> Any:
    """Return float32 in another type, rounded to nearest even."""
    if dtype == tl.bfloat16 and _ROUNDS:
        found = y.to(tl.bfloat16).to(tl.int16, bitcast=True)
        return tl.where(y == y, found, 0x7FC0).to(tl.int16).to(tl.bfloat16, bitcast=True)  # noqa: PLR0124
    elif dtype == tl.bfloat16:  # noqa: RET505 - the compiler reads what follows a branch that returns
        # By integers: the interpreter and chips without the instruction differ in how they convert.
        bits = bits_of(y)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF
        rounded = tl.where((bits & _MAGNITUDE) > INFINITY, 0x7FC0, rounded)
        return rounded.to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        return y.to(dtype)
