"""From codes to float32: kernels/reference/dequantize/dequantize.py, whose products each round once."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from fewbits.kernels.triton.values.bits import INFINITY, NAN, bits_of, float_of, times_power
from fewbits.kernels.triton.values.packing import load_codes
from fewbits.kernels.triton.values.quick import signed_value, value_of


@triton.jit
def without_sign(whole: tl.tensor, e: tl.constexpr) -> Any:
    """Return (code without sign, 1 where it is negative, whether it is NaN) of a packed code of a Grid."""
    if e.sign == "bit":
        negative = (whole >> (e.bits - 1)) & 1
        code = whole & ((1 << (e.bits - 1)) - 1)
    elif e.sign == "twos_complement":
        negative = (whole >> (e.bits - 1)) & 1
        code = tl.where(negative != 0, (1 << e.bits) - whole, whole)
    else:
        negative = tl.zeros_like(whole)
        code = whole
    if e.nan is None:
        not_a_number = code < 0
    elif e.inf is not None:
        not_a_number = code > e.inf
    else:
        # One code, of both signs where it is not that of minus zero.
        not_a_number = (whole == e.nan) if e.nan >> (e.bits - 1) else (code == e.nan)
    return code, negative, not_a_number


@triton.jit
def decode_grid(code: tl.tensor, not_a_number: tl.tensor, exponent: tl.tensor, e: tl.constexpr) -> Any:
    """Return the bits of the magnitude of a code without sign, times ``2**exponent``, rounded once."""
    field = code >> e.m
    fraction = code & ((1 << e.m) - 1)
    count = tl.where(field > 0, fraction | (1 << e.m), fraction)
    magnitude = bits_of(count.to(tl.float32))
    magnitude = times_power(magnitude, tl.maximum(field, 1) - 1 + (e.emin - e.m) + exponent)
    if e.inf is not None:
        magnitude = tl.where(code == e.inf, INFINITY, magnitude)
    if e.nan is not None:
        magnitude = tl.where(not_a_number, NAN, magnitude)
    return magnitude


@triton.jit
def scale_value(whole: tl.tensor, e: tl.constexpr) -> Any:
    """Return the float32 of packed codes of a real scale."""
    code, negative, not_a_number = without_sign(whole, e)
    magnitude = decode_grid(code, not_a_number, tl.zeros_like(code), e)
    return float_of(magnitude | (negative << 31))


@triton.jit
def grid_value(
    code: tl.tensor, negative: tl.tensor, not_a_number: tl.tensor, exponent: tl.tensor, e: tl.constexpr
) -> Any:
    """Return the float32 values of codes without sign of a Grid, times ``2**exponent``."""
    minus = (negative != 0) if e.signed_zero else (negative != 0) & (code != 0)
    return float_of(decode_grid(code, not_a_number, exponent, e) | (minus.to(tl.int32) << 31))


@triton.jit
def table_value(
    codes: tl.tensor, exponent: tl.tensor, scale: tl.tensor, by_code: tl.tensor, f: tl.constexpr
) -> Any:
    """Return the float32 values of codes of a Table, times their scale: a float64 product, rounded once."""
    value = tl.load(by_code + codes)
    if f.scaling == "power":
        power = (exponent.to(tl.int64) + 1023) << 52
        value = value * power.to(tl.float64, bitcast=True)
    elif f.scaling != "none":
        value = value * scale.to(tl.float64)
    return value.to(tl.float32)


@triton.jit
def element_value(whole: tl.tensor, exponent: tl.tensor, f: tl.constexpr) -> Any:
    """Return the float32 of packed codes of a Grid, times ``2**exponent``."""
    e: tl.constexpr = f.grid
    code, negative, not_a_number = without_sign(whole, e)
    if f.quick is None:
        y = grid_value(code, negative, not_a_number, exponent, e)
    else:
        v = value_of(code, f)
        if e.inf is not None:
            v = tl.where(code == e.inf, float("inf"), v)
        y = signed_value(v, code, negative, not_a_number, exponent, f)
    return y


@triton.jit
def load_elements(
    codes: tl.tensor,
    by_code: tl.tensor,
    line: tl.tensor,
    i: tl.tensor,
    inside: tl.tensor,
    n: tl.tensor,
    exponent: tl.tensor,
    f: tl.constexpr,
) -> Any:
    """Return the float32 values of packed elements, times ``2**exponent``; zero where not ``inside``.

    Only elements of a Grid are multiplied.
    """
    if f.grid is not None:
        grid: tl.constexpr = f.grid
        y = element_value(load_codes(codes, inside, line, i, n, grid.bits), exponent, f)
    else:
        y = table_value(load_codes(codes, inside, line, i, n, f.table.bits), exponent, exponent, by_code, f)
    return tl.where(inside, y, 0.0)


@triton.jit
def load_shifts(
    shifts: tl.tensor, line: tl.tensor, i: tl.tensor, inside: tl.tensor, n: tl.tensor, f: tl.constexpr
) -> Any:
    """Return by how many binades values lie below the scale of their block, as int32."""
    of_line = (n + f.per_shift - 1) // f.per_shift
    return load_codes(shifts, inside, line, i // f.per_shift, of_line, f.shift_bits)


@triton.jit
def load_scales(
    scales: tl.tensor, line: tl.tensor, i: tl.tensor, inside: tl.tensor, n: tl.tensor, f: tl.constexpr
) -> Any:
    """Return the codes of the scales of values."""
    if f.per_scale > 0:
        item, count = i // f.per_scale, (n + f.per_scale - 1) // f.per_scale
    else:
        item, count = i * 0, 1
    of = line * 0 if f.per_scale == 0 and f.shared == "tensor" else line
    return load_codes(scales, inside, of, item, count, f.scale.bits)


@triton.jit
def load_outer(outer: tl.tensor, line: tl.tensor, inside: tl.tensor, f: tl.constexpr) -> Any:
    """Return the outer scales of lines."""
    return tl.load(outer + (line * 0 if f.shared == "tensor" else line), mask=inside, other=1.0)


@triton.jit
def load_values(
    codes: tl.tensor,
    scales: tl.tensor,
    shifts: tl.tensor,
    outer: tl.tensor,
    by_code: tl.tensor,
    line: tl.tensor,
    i: tl.tensor,
    inside: tl.tensor,
    n: tl.tensor,
    f: tl.constexpr,
) -> Any:
    """Return the float32 values of packed parts, zero where not ``inside``.

    Args:
        codes: where packed parts lie, as do scales, shifts and outer.
        scales: likewise; not read where f.scaling is "none".
        shifts: likewise.
        outer: likewise.
        by_code: float64 values of a Table.
        line: of each value, broadcastable to i.
        i: the places of values in their line.
        inside: which of them exist.
        n: values of a line.
        f: a Spec.
    """
    exponent = tl.zeros_like(i).to(tl.int32)
    of_scale: tl.constexpr = f.scale
    if f.scaling == "none":
        y = load_elements(codes, by_code, line, i, inside, n, exponent, f)
    else:
        whole = load_scales(scales, line, i, inside, n, f)
        if f.scaling == "power":
            exponent = whole + f.scale.emin
            if f.per_shift > 0:
                exponent = exponent - load_shifts(shifts, line, i, inside, n, f)
            y = load_elements(codes, by_code, line, i, inside, n, exponent, f)
            y = tl.where(inside & (whole == f.scale.nan), float_of(tl.full(y.shape, NAN, tl.int32)), y)
        elif f.grid is None:
            found = load_codes(codes, inside, line, i, n, f.table.bits)
            y = table_value(found, whole, scale_value(whole, of_scale), by_code, f)
        else:
            y = load_elements(codes, by_code, line, i, inside, n, exponent, f) * scale_value(whole, of_scale)
            if f.scaling == "outer":
                y = y * load_outer(outer, line, inside, f)
    return tl.where(inside, y, 0.0)


@triton.jit
def value_of_codes(
    found: tl.tensor,
    scales: tl.tensor,
    shifts: tl.tensor,
    outer: tl.tensor,
    line: tl.tensor,
    i: tl.tensor,
    first: tl.tensor,
    inside: tl.tensor,
    exists: tl.tensor,
    n: tl.tensor,
    f: tl.constexpr,
) -> Any:
    """Return the float32 values of the codes of a Grid, (rows, width), whose rows each have one scale.

    Args:
        found: codes as they are packed.
        scales: where packed parts lie, as load_values has them; so are shifts and outer.
        shifts: likewise.
        outer: likewise.
        line: of each row, (rows, 1).
        i: the places of values in their line.
        first: of each row, (rows, 1).
        inside: which values exist.
        exists: which rows, (rows, 1).
        n: values of a line.
        f: a Spec.
    """
    exponent = tl.zeros_like(first).to(tl.int32)
    of_scale: tl.constexpr = f.scale
    whole = exponent
    if f.scaling != "none":
        whole = load_scales(scales, line, first, exists, n, f)
    if f.scaling == "power":
        exponent = whole + of_scale.emin
        if f.per_shift > 0:
            exponent = exponent - load_shifts(shifts, line, i, inside, n, f)
    y = element_value(found, exponent, f)
    if f.scaling == "power":
        y = tl.where(whole == of_scale.nan, float("nan"), y)
    elif f.scaling != "none":
        y = y * scale_value(whole, of_scale)
        if f.scaling == "outer":
            y = y * load_outer(outer, line, exists, f)
    return y
