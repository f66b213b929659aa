"""One tile of values rounded to a format: what every kernel that rounds has in its middle."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from fewbits.kernels.triton.values.bits import INFINITY, NAN, float_of
from fewbits.kernels.triton.values.decode import grid_value, scale_value, table_value
from fewbits.kernels.triton.values.encode import encode_grid, encode_table, parts_of, with_sign
from fewbits.kernels.triton.values.scales import gain_of, real_scale, shared_exponent, shift_of, two_level_scale
from fewbits.kernels.triton.values.stochastic_draws import draws


@triton.jit
def round_tile(
    v: tl.tensor,
    positions: tl.tensor,
    largest: tl.tensor,
    bad: tl.tensor,
    seed_low: tl.tensor,
    seed_high: tl.tensor,
    keys: tl.tensor,
    table_codes: tl.tensor,
    rising: tl.tensor,
    by_code: tl.tensor,
    f: tl.constexpr,
) -> Any:
    """Return the codes, values, scale codes, shifts and outer scales of a tile, a group in each row.

    Args:
        v: (rows, width) float32, zero where there is no value.
        positions: of the values in their array, by which they draw.
        largest: bits of the largest magnitude of what shares a scale with a row, (rows,), where f.shared.
        bad: 1 where that is not all finite.
        seed_low: of stochastic rounding, as is seed_high.
        seed_high: its upper 32 bits.
        keys: as encode_table has them, as are table_codes and rising; by_code as decode_table.
        table_codes: likewise.
        rising: likewise.
        by_code: likewise.
        f: a Spec.
    """
    rows: tl.constexpr = v.shape[0]
    width: tl.constexpr = v.shape[1]
    magnitude, negative = parts_of(v)
    finite = tl.where(magnitude < INFINITY, magnitude, 0)
    lost = tl.zeros([rows], tl.int32)
    most = lost
    if f.scaling != "none":
        if f.shared == "" or f.scaling == "outer":
            most = tl.max(finite, axis=1)
            lost = tl.max((magnitude >= INFINITY).to(tl.int32), axis=1)
        else:
            most, lost = largest, bad
    exponent = tl.zeros([rows, 1], tl.int32)
    shifts = exponent
    scale = lost
    outer = tl.full([rows], 1.0, tl.float32)
    divisor = outer
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
    elif f.scaling == "outer":
        gain, outer = gain_of(largest, f)
        scale, divisor = two_level_scale(most, gain, f)
    if f.scaling == "real" or f.scaling == "outer":
        magnitude, negative = parts_of(tl.div_rn(v, tl.broadcast_to(divisor[:, None], [rows, width])))
    drawn = tl.zeros([rows, width], tl.uint32)
    if f.rounding == "stochastic":
        drawn = draws(positions, seed_low, seed_high, f.random_bits)
    of_scale = divisor
    if f.scaling == "outer":
        of_scale = scale_value(scale, f.scale)
    if f.grid is not None:
        code, not_a_number = encode_grid(
            magnitude, negative, exponent, drawn, f.grid, f.rounding, f.random_bits, f.overflow
        )
        codes = with_sign(code, negative, not_a_number, f.grid)
        y = grid_value(code, negative, not_a_number, exponent, f.grid)
        if f.scaling == "real" or f.scaling == "outer":
            y = y * of_scale[:, None]
        if f.scaling == "outer":
            y = y * outer[:, None]
    else:
        codes = encode_table(
            magnitude, negative, exponent, drawn, keys, table_codes, rising, f.table, f.rounding, f.random_bits
        )
        y = table_value(codes, exponent, of_scale[:, None], by_code, f)
    if f.nonfinite == "block_nan":
        poisoned = (lost != 0)[:, None]
        codes = tl.where(poisoned, 0, codes)
        y = tl.where(poisoned, float_of(tl.full([rows, width], NAN, tl.int32)), y)
        scale = tl.where(lost != 0, f.scale.nan, scale)
    return codes, y, scale, shifts, outer
