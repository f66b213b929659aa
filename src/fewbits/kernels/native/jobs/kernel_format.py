"""A format and its options as the plain numbers that the compiled kernels take."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fewbits import _native
from fewbits.formats import Element, Format, ValueGrid
from fewbits.kernels.bits.options import Options
from fewbits.kernels.bits.scale_rules import MEAN_RULES, SCALE_RULES
from fewbits.kernels.native.jobs.tables import table
from fewbits.kernels.reference.values.encode import encode

_LARGEST_SUB_BLOCK = 512  # values that the kernels work on at once
_NONFINITE = {
    "element": _native.Nonfinite.element,
    "block_nan": _native.Nonfinite.block_nan,
    "saturate": _native.Nonfinite.saturate,
    "raise": _native.Nonfinite.refuse,
}


@lru_cache(maxsize=256)
def kernel_format(format: Format, options: Options) -> _native.Format | None:
    """Return the record for the compiled kernels, or None if they do not support the format.

    They support every format in the catalogue. Left to the definition: block elements outside the range of
    float32 before scaling, floats with subnormals below 2^-126, shifts shared by more than 512 values,
    two-level formats whose scale and element together exceed 24 bits, and scales chosen from a mean.
    """
    element = format.element
    if not (_holds(element) and _holds_scales(format)) or options.scale_rule in MEAN_RULES:
        return None
    p = _native.Format()
    if element.grid is not None:
        p.grid = _grid(element, element.grid)
    else:
        p.set_table(
            **table(element, options.rounding, options.overflow)._asdict(),
            nan=element.nan_code or 0,
            has_nan=element.has_nan,
            infinity_is_nan=element.reals_only,
            negative_is_nan=element.power_of_two,
        )
    p.rounding = getattr(_native.Rounding, options.rounding)
    p.random_bits = options.random_bits
    p.overflow = getattr(_native.Overflow, options.overflow)
    p.nonfinite = _NONFINITE[options.nonfinite]
    p.block = p.sub_block = 1
    _set_scales(p, format, options)
    return p


def _holds(element: Element) -> bool:
    return element.bits <= 16 if element.grid is None else element.grid.emin >= -126


def _holds_scales(format: Format) -> bool:
    element, (_, scales, shifts, outer) = format.element, format.groups
    if scales is None:
        return True
    if shifts is not None and isinstance(shifts.size, int) and shifts.size > _LARGEST_SUB_BLOCK:
        return False
    if not (element.emax <= 100 and element.finest_step >= 2.0**-80):
        return False
    if scales.power_of_two:
        return True
    if not _holds(scales.element):
        return False
    grids = (element.grid, scales.element.grid)
    bits = sum(24 if grid is None else grid.mantissa_bits + 1 for grid in grids)
    return outer is None or element.grid is None or bits <= 24


def _grid(element: Element, grid: ValueGrid) -> _native.Grid:
    g = _native.Grid()
    g.bits, g.m, g.emin = element.bits, grid.mantissa_bits, grid.emin
    g.has_nan, g.nan, g.inf = element.has_nan, element.nan_code or 0, element.inf_code or 0
    g.signed_zero = element.signed_zero
    g.sign = getattr(_native.Sign, grid.sign)
    largest = encode(element, np.array([element.max]), "toward_zero", "saturate", None)
    g.limit_above = g.limit_below = int(largest[0])
    if element.min != -element.max:  # in steps: only fixed point has another limit below zero
        g.limit_below = round(-element.min / element.smallest_normal)
    g.rounds_by_addition = g.m <= 22 and element.emax + 24 - g.m <= 127 and g.emin - g.m >= -90
    return g


def _set_scales(p: _native.Format, format: Format, options: Options) -> None:
    element, (_, scales, shifts, outer) = format.element, format.groups
    if scales is None:
        return
    scale = scales.element
    p.scale_bits, p.scale_nan = scale.bits, -1 if scale.nan_code is None else scale.nan_code
    p.element_max = element.max
    p.block = scales.size if isinstance(scales.size, int) else 2**40  # the whole line
    if scales.power_of_two:
        p.scales = _native.Scales.power_of_two
        p.emax, p.scale_emin, p.scale_emax, p.scale_bias = element.emax, scale.emin, scale.emax, -scale.emin
        p.scale_zero = scale.emin if options.zero_block == "smallest" else min(max(0, scale.emin), scale.emax)
        rule = SCALE_RULES[options.scale_rule](element)
        p.rule_plus, p.rule_first = rule.plus, rule.first(23)  # as native/jobs/format.hpp has them
    else:
        assert scale.grid is not None
        p.scales, p.scale_grid = _native.Scales.real, _grid(scale, scale.grid)
        smallest = scale.smallest_subnormal
        one = max(min(1.0, scale.max), smallest)
        codes = encode(scale, np.array([smallest, one]), "nearest_even", "saturate", None)
        p.scale_smallest = int(codes[0])
        p.scale_of_zeros = int(codes[0] if options.zero_block == "smallest" else codes[1])
    if shifts is not None:
        assert isinstance(shifts.size, int)
        p.scales, p.sub_block = _native.Scales.shifted, shifts.size
        p.shift_bits, p.largest_shift = shifts.bits, format.largest_shift
    elif outer is not None:
        p.scales, p.fill = _native.Scales.two_level, scale.max * element.max
