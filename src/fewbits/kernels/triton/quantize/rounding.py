"""One tile of values rounded to a format: what every kernel that rounds has in its middle."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from fewbits.kernels.triton.values.bits import INFINITY, NAN, float_of
from fewbits.kernels.triton.values.decode import grid_value, scale_value, table_value
from fewbits.kernels.triton.values.encode import encode_grid, encode_table, parts_of, with_sign
from fewbits.kernels.triton.values.quick import over_power, round_quickly, signed_value
from fewbits.kernels.triton.values.scales import (
    gain_of,
    real_scale,
    shared_exponent,
    shift_of,
    two_level_scale,
)


@triton.jit
def _scale_tile(magnitude: tl.tensor, largest: tl.tensor, bad: tl.tensor, f: tl.constexpr) -> Any:
    """Return how the rows of a tile are scaled.

    Args:
        magnitude: (rows, width), bits without a sign.
        largest: as round_tile has it, as is bad.
        bad: likewise.
        f: a Spec.

    Returns:
        Codes of the scales, the exponents of powers of two to divide by, (rows, 1 or width), the shifts of
        groups, the numbers to divide by, those that elements are multiplied by, the outer scales, and where a
        NaN or infinity is.
    """
    rows: tl.constexpr = magnitude.shape[0]
    width: tl.constexpr = magnitude.shape[1]
    finite = tl.where(magnitude < INFINITY, magnitude, 0)
    if f.scaling != "none" and (f.shared == "" or f.scaling == "outer"):
        if f.nonfinite == "element" or f.per_shift > 0:
            most = tl.max(finite, axis=1)
            lost = tl.max((magnitude >= INFINITY).to(tl.int32), axis=1)
        else:  # what is not finite makes the block NaN, whatever its scale
            most = tl.max(magnitude, axis=1)
            lost = (most >= INFINITY).to(tl.int32)
    else:
        most, lost = largest, bad
    scale = lost
    exponent = tl.zeros([rows, 1], tl.int32)
    shifts = exponent
    outer = tl.full([rows], 1.0, tl.float32)
    divisor, multiplier = outer, outer
    if f.scaling == "power":
        chosen = shared_exponent(most, f)
        scale = chosen - f.scale.emin
        exponent = chosen[:, None]
        if f.per_shift > 0:
            groups: tl.constexpr = width // f.per_shift
            of_groups = tl.max(tl.reshape(finite, [rows, groups, f.per_shift]), axis=2)
            shifts = shift_of(of_groups, exponent, f)
            spread = tl.broadcast_to(shifts[:, :, None], [rows, groups, f.per_shift])
            exponent = exponent - tl.reshape(spread, [rows, width])
    elif f.scaling == "real":
        scale, divisor = real_scale(most, f)
        multiplier = divisor
    elif f.scaling == "outer":
        gain, outer = gain_of(largest, f)
        scale, divisor = two_level_scale(most, gain, f)
        of_scale: tl.constexpr = f.scale
        multiplier = scale_value(scale, of_scale)
    return scale, exponent, shifts, divisor, multiplier, outer, lost


@triton.jit
def round_tile(
    v: tl.tensor,
    drawn: tl.tensor,
    largest: tl.tensor,
    bad: tl.tensor,
    keys: tl.tensor,
    table_codes: tl.tensor,
    rising: tl.tensor,
    by_code: tl.tensor,
    f: tl.constexpr,
) -> Any:
    """Return the codes, values, scale codes, shifts and outer scales of a tile, a group in each row.

    Args:
        v: (rows, width) float32, zero where there is no value.
        drawn: the random bits of stochastic rounding; anything otherwise.
        largest: bits of the largest magnitude of what shares a scale with a row, (rows,), where f.shared.
        bad: 1 where that is not all finite.
        keys: as encode_table has them, as are table_codes and rising; by_code as decode_table.
        table_codes: likewise.
        rising: likewise.
        by_code: likewise.
        f: a Spec.
    """
    tile: tl.constexpr = [v.shape[0], v.shape[1]]
    magnitude, negative = parts_of(v)
    scale, exponent, shifts, divisor, multiplier, outer, lost = _scale_tile(magnitude, largest, bad, f)
    if f.real:
        finite = magnitude < INFINITY
        magnitude, negative = parts_of(tl.div_rn(v, tl.broadcast_to(divisor[:, None], tile)))
        if f.grid is None:
            table_of: tl.constexpr = f.table
            if table_of.infinity_is_nan:  # of a number the quotient is one, if beyond float32
                magnitude = tl.where(finite, tl.minimum(magnitude, INFINITY - 1), magnitude)
    rounding: tl.constexpr = f.rounding
    overflow: tl.constexpr = f.overflow
    if f.grid is not None:
        grid: tl.constexpr = f.grid
        if f.quick is not None:
            code, found = round_quickly(over_power(float_of(magnitude), exponent, f), negative, drawn, f)
            not_a_number = magnitude > INFINITY
            codes = with_sign(code, negative, not_a_number, grid)
            y = signed_value(found, code, negative, not_a_number, exponent, f)
        else:
            code, not_a_number = encode_grid(
                magnitude, negative, exponent, drawn, grid, rounding, f.random_bits, overflow
            )
            codes = with_sign(code, negative, not_a_number, grid)
            y = grid_value(code, negative, not_a_number, exponent, grid)
        if f.real:
            y = y * multiplier[:, None]
        if f.scaling == "outer":
            y = y * outer[:, None]
    else:
        table: tl.constexpr = f.table
        codes = encode_table(
            magnitude,
            negative,
            exponent,
            drawn,
            keys,
            table_codes,
            rising,
            table,
            rounding,
            f.random_bits,
        )
        y = table_value(codes, exponent, multiplier[:, None], by_code, f)
    if f.nonfinite == "block_nan":
        poisoned = (lost != 0)[:, None]
        codes = tl.where(poisoned, 0, codes)
        y = tl.where(poisoned, float_of(tl.full(tile, NAN, tl.int32)), y)
        scale = tl.where(lost != 0, f.scale.nan, scale)
    return codes, y, scale, shifts, outer
