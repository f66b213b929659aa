"""Numbers to the codes of one element format and back: kernels/reference/values/encode.py on bit patterns."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fewbits.formats import Element, Exponent, Fixed, Float
from fewbits.kernels.bits.options import Options
from fewbits.kernels.portable.values.floats import (
    DOUBLE,
    Layout,
    power_of_two,
    scaled_constant,
)
from fewbits.kernels.portable.values.rounding import (
    away_from_zero_on_overflow,
    round_to_grid,
)
from fewbits.kernels.portable.values.stochastic import dropped_bits_go_up
from fewbits.kernels.portable.values.tables import decode_listed, encode_listed

Tensor = torch.Tensor


def code_dtype(bits: int) -> torch.dtype:
    """Return an integer type for codes of ``bits`` bits, and for twice the largest."""
    return torch.int32 if bits <= 30 else torch.int64


class Numbers(NamedTuple):
    """Numbers by their bits, each in units of a power of two."""

    bits: Tensor
    unit: Tensor  # exponents, broadcastable to the bits
    layout: Layout
    least_unit: int  # no exponent is below

    @property
    def magnitude(self) -> Tensor:
        """Bits without the sign."""
        return self.bits & self.layout.magnitude


def round_gridded(element: Element, x: Numbers, chosen: Options, drawn: Tensor | None) -> Tensor:
    """Return the bits of ``x`` rounded to an element whose values are on a grid, in units still."""
    layout, grid, magnitude, negative = x.layout, element.grid, x.magnitude, x.bits < 0
    assert grid is not None
    lowest = x.unit + (grid.emin + layout.bias)
    least = grid.emin + layout.bias + x.least_unit
    rounded = round_to_grid(
        magnitude, negative, lowest, grid.mantissa_bits, layout, chosen, drawn, least=least
    )
    found = rounded.bits
    limit = scaled_constant(element.max, x.unit, layout, x.least_unit)
    if element.min != -element.max:
        limit = torch.where(negative, scaled_constant(-element.min, x.unit, layout, x.least_unit), limit)
    y = torch.minimum(found, limit)
    if chosen.overflow != "saturate":
        infinite = magnitude == layout.infinity
        beyond = found > scaled_constant(element.max, x.unit, layout, x.least_unit, down=True)
        further = beyond & away_from_zero_on_overflow(negative, chosen.rounding) | infinite
        y = torch.where(further, layout.infinity if chosen.overflow == "inf" else layout.nan, y)
    if element.has_nan and chosen.nonfinite == "element":
        y = torch.where(magnitude > layout.infinity, layout.nan, y)
    signed = y | (x.bits & layout.sign)
    # What is no zero of the element keeps its sign, if the unit makes it one.
    zero = y if element.min == 0 else rounded.counts
    return signed if element.signed_zero else torch.where(zero == 0, 0, signed)


def encode_gridded(element: Element, x: Numbers, chosen: Options, drawn: Tensor | None) -> Tensor:
    """Return the codes of ``x`` in units, int32 or int64, for an element whose values are on a grid."""
    layout, grid, magnitude, negative = x.layout, element.grid, x.magnitude, x.bits < 0
    assert grid is not None
    m = grid.mantissa_bits
    lowest = x.unit + (grid.emin + layout.bias)
    least = grid.emin + layout.bias + x.least_unit
    count, shift, binade, _ = round_to_grid(
        magnitude, negative, lowest, m, layout, chosen, drawn, least=least
    )
    if least < 1:
        count = count << (-shift).clamp(min=0)
    # Beyond the largest it is enough to be beyond.
    above = (binade - lowest).clamp(max=element.emax - grid.emin + 1)
    code = (above.to(code_dtype(element.bits)) << m) + count
    if isinstance(element, Fixed):
        return _fixed_code(element, code, negative)
    assert isinstance(element, Float)
    return _float_code(element, code, magnitude, negative, layout, chosen)


def _fixed_code(f: Fixed, count: Tensor, negative: Tensor) -> Tensor:
    below = round(-f.min / f.smallest_normal)
    if f.coding == "sign_magnitude":
        return count.clamp(max=f.steps) | torch.where(negative, 1 << (f.bits - 1), 0)
    signed = torch.where(negative, -count.clamp(max=below), count.clamp(max=f.steps))
    return signed & (1 << f.bits) - 1


def _float_code(
    f: Float, code: Tensor, magnitude: Tensor, negative: Tensor, layout: Layout, chosen: Options
) -> Tensor:
    largest = _largest_code(f)
    infinite = magnitude == layout.infinity
    beyond = (code > largest) | infinite
    further = beyond & (away_from_zero_on_overflow(negative, chosen.rounding) | infinite)
    code = torch.where(infinite, largest, code.clamp(max=largest))
    if chosen.overflow == "inf" and f.inf_code is not None:
        code = torch.where(further, f.inf_code, code)
    has_sign = negative if f.signed_zero else negative & (code != 0)
    code = torch.where(has_sign, code | 1 << (f.bits - 1), code)
    if f.nan_code is None:
        return code
    lost = magnitude > layout.infinity
    return torch.where(lost | further if chosen.overflow == "nan" else lost, f.nan_code, code)


def _largest_code(f: Float) -> int:
    lost = 2 if f.special == "fn" and f.mantissa_bits > 0 else 1
    return ((f.emax - f.emin) << f.mantissa_bits) + (2 << f.mantissa_bits) - lost


def encode_other(element: Element, x: Tensor, chosen: Options, drawn: Tensor | None) -> Tensor:
    """Return the codes of float64 ``x`` for an element that has no grid: powers of two and lists."""
    if isinstance(element, Exponent):
        return _encode_exponent(element, x, chosen, drawn)
    return encode_listed(element, x, chosen, drawn)


def _encode_exponent(f: Exponent, x: Tensor, chosen: Options, drawn: Tensor | None) -> Tensor:
    bits = x.view(torch.int64)
    magnitude = bits & DOUBLE.magnitude
    fraction, exponent = magnitude & (1 << 52) - 1, (magnitude >> 52) - DOUBLE.bias
    below_zero = (bits < 0) & (magnitude > 0)
    # A one-bit significand is always odd, so a tie to even goes up.
    if chosen.rounding.startswith("nearest"):
        up = fraction >= 1 << 51
    elif chosen.rounding == "stochastic":
        assert drawn is not None
        up = dropped_bits_go_up(fraction, torch.full_like(fraction, 52), drawn, chosen.random_bits)
    else:
        up = (fraction > 0) & (below_zero if chosen.rounding == "down" else ~below_zero)
        up = up & (chosen.rounding != "toward_zero")
    exponent = exponent + up.to(exponent.dtype)
    code = exponent.clamp(f.emin, f.emax) + f.bias
    lost = (magnitude > DOUBLE.infinity) | below_zero
    if chosen.overflow == "nan":
        away = away_from_zero_on_overflow(below_zero, chosen.rounding)
        lost = lost | (magnitude == DOUBLE.infinity) | ((exponent > f.emax) & away)
    code = torch.where(magnitude == 0, 0, code)
    return torch.where(lost, f.nan_code, code)


def decode(element: Element, codes: Tensor) -> Tensor:
    """Return the float64 value of every code."""
    match element:
        case Float():
            return _decode_float(element, codes)
        case Fixed():
            return _decode_fixed(element, codes)
        case Exponent():
            nan = torch.full((), torch.nan, dtype=torch.float64, device=codes.device)
            return torch.where(codes == element.nan_code, nan, power_of_two(codes - element.bias))
        case _:
            return decode_listed(element, codes)


def _decode_float(f: Float, codes: Tensor) -> Tensor:
    m = f.mantissa_bits
    field = codes >> m & (1 << f.exponent_bits) - 1
    fraction = codes & (1 << m) - 1
    significand = torch.where(field > 0, fraction + (1 << m), fraction)
    negative = codes >> (f.bits - 1) & 1 == 1
    value = significand.double() * power_of_two(field.clamp(min=1) - f.bias - m)
    top = field == (1 << f.exponent_bits) - 1
    if f.special == "ieee":
        value = torch.where(top, torch.where(fraction == 0, torch.inf, torch.nan), value)
    value = torch.where(negative, -value, value)
    if f.special == "fn":
        return torch.where(top & (fraction == (1 << m) - 1), torch.nan, value)
    return torch.where(codes.eq(f.nan_code or 0), torch.nan, value) if f.special == "fnuz" else value


def _decode_fixed(f: Fixed, codes: Tensor) -> Tensor:
    half = 1 << (f.bits - 1)
    if f.coding == "unsigned":
        return codes.double() * 2.0**-f.frac
    if f.coding == "sign_magnitude":
        value = (codes & half - 1).double() * 2.0**-f.frac
        return torch.where(codes & half != 0, -value, value)
    return torch.where(codes & half != 0, codes - 2 * half, codes).double() * 2.0**-f.frac
