"""The bits of float32 and float64 as integers: no operation here can lose a subnormal or round twice.

A device or a compiler may flush subnormals, contract a product and a sum, or divide with less than full
accuracy. So what has to be exact is integer arithmetic on bit patterns. Where float64 multiplies or divides,
operands and result are normal, and one operation is rounded once.

A magnitude is a bit pattern without its sign: integers that rise as the numbers do, infinity after the
largest, NaN after infinity.
"""

from __future__ import annotations

from math import frexp
from typing import NamedTuple

import torch

Tensor = torch.Tensor


class Layout(NamedTuple):
    """Where sign, exponent and fraction lie in a dtype."""

    real: torch.dtype
    integer: torch.dtype  # of the same width
    fraction: int  # bits behind the leading one
    bias: int

    @property
    def sign(self) -> int:
        """The sign bit, as the integer that it alone is."""
        return -1 << (31 if self.fraction == 23 else 63)

    @property
    def magnitude(self) -> int:
        """All bits but the sign."""
        return ~self.sign

    @property
    def infinity(self) -> int:
        """The bits of infinity."""
        return (2 * self.bias + 1) << self.fraction

    @property
    def nan(self) -> int:
        """The bits of the quiet NaN."""
        return self.infinity | 1 << (self.fraction - 1)


SINGLE = Layout(torch.float32, torch.int32, 23, 127)
DOUBLE = Layout(torch.float64, torch.int64, 52, 1023)


_FEW = 3  # exponents of subnormals that are told by a comparison each


def layout_of(dtype: torch.dtype) -> Layout:
    """Return in what values of a dtype are worked on: float64 in itself, all others in float32."""
    return DOUBLE if dtype == torch.float64 else SINGLE


def bits_of(x: Tensor) -> Tensor:
    """Return the bits of ``x`` in its :func:`layout_of`."""
    x = x.detach().resolve_neg()
    if x.dtype == torch.float64:
        return x.view(torch.int64)
    # A float16 becomes a normal float32; a bfloat16 is the upper half of one, and no conversion but a shift.
    return (x if x.dtype == torch.float32 else x.float()).view(torch.int32)


def of_bits(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the numbers of bits of :func:`layout_of` ``dtype``, rounded to nearest even to that."""
    if dtype == torch.bfloat16:
        # All but the last cut is done on integers, of 32 bits since Inductor has no vectors of 16.
        bits = to_bfloat16(bits)
        if not torch.compiler.is_compiling():
            # Torch's conversion has another NaN on each device, and on the CPU where it takes vectors.
            return (bits >> 16).to(torch.int16).view(torch.bfloat16)
    real = bits.view(layout_of(dtype).real)
    return real if real.dtype == dtype else real.to(dtype)


def to_bfloat16(bits: Tensor) -> Tensor:
    """Return the bits of float32 rounded to those that a bfloat16 has, the upper half."""
    near = bits + (0x7FFF + (bits >> 16 & 1)) & -1 << 16
    return torch.where((bits & SINGLE.magnitude) > SINGLE.infinity, SINGLE.nan, near)


def exponent_of(magnitude: Tensor, layout: Layout, least: int | None = None) -> Tensor:
    """Return floor(log2) plus the bias; of subnormals too, and of zero less than that of any.

    With ``least``, exponents below it may come out as any that is not above it.
    """
    f = layout.fraction
    if least is not None and least >= -_FEW:
        # By integers alone, as bits of float32 on the way would go through memory in a graph of the CPU.
        exponent, last = magnitude >> f, 8 * magnitude.element_size() - 1
        for lower in range(-least):
            exponent = exponent + (magnitude - (1 << f - 1 - lower) >> last)  # the sign is one less
        return exponent
    # A subnormal's integer is exact in the dtype and normal there.
    tiny = (magnitude.to(layout.real).view(layout.integer) >> f) - (layout.bias + f - 1)
    return torch.where(magnitude < 1 << f, tiny, magnitude >> f)


def fraction_of(magnitude: Tensor, layout: Layout) -> Tensor:
    """Return the bits behind the leading one; of subnormals too."""
    tiny = magnitude.to(layout.real).view(layout.integer)
    return torch.where(magnitude < 1 << layout.fraction, tiny, magnitude) & (1 << layout.fraction) - 1


def power_of_two(exponent: Tensor) -> Tensor:
    """Return 2^exponent in float64, for exponents of normal numbers."""
    return (exponent.to(torch.int64) + DOUBLE.bias << DOUBLE.fraction).view(torch.float64)


def scaled_constant(
    value: float, exponent: Tensor, layout: Layout, least: int, *, down: bool = False
) -> Tensor:
    """Return the bits of ``value`` x 2^exponent, to nearest even or down; infinity beyond the largest.

    Args:
        value: not negative, exact in the layout's dtype.
        exponent: integers, a tensor.
        layout: of the result.
        least: below which no exponent is.
        down: whether what is below the smallest subnormal is cut.
    """
    f, exponent = layout.fraction, exponent.to(layout.integer)
    part, power = frexp(value)
    significand = int(part * 2.0 ** (f + 1))
    if not significand:
        return torch.zeros_like(exponent)
    offset = power - 1 + layout.bias
    field = exponent.to(layout.integer) + offset
    # One binade above the largest all is beyond it.
    normal = ((field - 1).clamp(max=2 * layout.bias) << f).add(significand).clamp(max=layout.infinity)
    if least + offset > 0:
        return normal
    lost = (1 - field).clamp(0, f + 2)
    tiny = significand >> lost if down else nearest_even(torch.full_like(field, significand), lost)
    # Chosen by a mask of bits: a boolean that Inductor keeps on the way costs more than all the rest.
    subnormal = field - 1 >> 8 * field.element_size() - 1
    return normal ^ (normal ^ tiny) & subnormal


def nearest_even(significand: Tensor, shift: Tensor) -> Tensor:
    """Return ``significand`` / 2^shift rounded to an integer; both stay two bits below the sign."""
    # Doubled, so that the half of one is a whole number for every shift.
    odd = significand >> shift & 1
    return (significand << 1) + ((1 << shift) - 1 + odd) >> shift + 1


def widened(bits: Tensor) -> Tensor:
    """Return the float64 of finite float32 bits."""
    magnitude = bits & SINGLE.magnitude
    field = (magnitude >> 23).clamp(min=1)
    significand = magnitude - (field - 1 << 23)
    signed = torch.where(bits < 0, -significand, significand)
    value = signed.double() * power_of_two(field - 150)
    return torch.where((bits < 0) & (magnitude == 0), -0.0, value)


def single(x: Tensor) -> Tensor:
    """Return the bits of float32 nearest to float64 ``x``, a tie to even; beyond the largest, infinity."""
    bits = x.view(torch.int64)
    magnitude = bits & DOUBLE.magnitude
    field = magnitude >> 52
    normal = field.clamp(min=897)  # of 2^-126, the smallest normal float32
    significand = magnitude & (1 << 52) - 1 | 1 << 52
    kept = nearest_even(significand, (29 + normal - field).clamp(max=60))
    found = ((normal - 897 << 23) + kept).clamp(max=SINGLE.infinity)
    found = torch.where(magnitude > DOUBLE.infinity, SINGLE.nan, found).to(torch.int32)
    return torch.where(bits < 0, found | SINGLE.sign, found)
