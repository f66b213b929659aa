"""A format and its options as the plain numbers that the compiled kernels take."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fewbits import _native
from fewbits.formats import Bdr, Block, Element, Exponent, Fixed, Float, Format, Lookup, Posit
from fewbits.kernels.bits.options import Options
from fewbits.kernels.bits.scale_rules import SCALE_RULES
from fewbits.kernels.native.jobs.tables import table
from fewbits.kernels.reference.values.encode import encode, nan_code

_LARGEST_SUB_BLOCK = 512  # values that the kernels work on at once
_NONFINITE = {
    "element": _native.Nonfinite.element,
    "block_nan": _native.Nonfinite.block_nan,
    "saturate": _native.Nonfinite.saturate,
    "raise": _native.Nonfinite.refuse,
}


@lru_cache(maxsize=256)
def kernel_format(fmt: Format, options: Options) -> _native.Format | None:
    """Return what the compiled kernels need, or None where they cannot hold the format.

    They hold everything in the catalogue. What they leave to the definition: elements in blocks so large or
    so fine that they leave float32 before the scale brings them back, floats with subnormals below 2^-126,
    shifts that more than 512 values share, and two-level formats whose scale and element together exceed 24
    bits.
    """
    element = fmt if isinstance(fmt, Element) else fmt.element  # type: ignore[attr-defined]
    if not _holds(element) or (isinstance(fmt, Block | Bdr) and not _holds_blocks(fmt)):
        return None
    p = _native.Format()
    if isinstance(element, Float | Fixed):
        p.grid = _grid(element)
    else:
        found = table(element, options.rounding, options.overflow)
        p.set_table(
            **found._asdict(),
            nan=nan_code(element) if element.has_nan else 0,
            has_nan=element.has_nan,
            infinity_is_nan=isinstance(element, Posit),
            negative_is_nan=isinstance(element, Exponent),
        )
    p.rounding = getattr(_native.Rounding, options.rounding)
    p.overflow = getattr(_native.Overflow, options.overflow)
    p.nonfinite = _NONFINITE[options.nonfinite]
    p.block = p.sub_block = 1
    if isinstance(fmt, Block | Bdr):
        _scales(p, fmt, options)
    return p


def _holds(element: Element) -> bool:
    if isinstance(element, Float):
        return element.emin >= -126
    return isinstance(element, Fixed) or element.bits <= 16


def _holds_blocks(fmt: Block | Bdr) -> bool:
    element = fmt.element
    if isinstance(fmt, Bdr) and fmt.k2 > _LARGEST_SUB_BLOCK:
        return False
    step = element.smallest_subnormal
    if isinstance(element, Lookup):
        step = float(np.diff(np.sort(element.values)).min())
    if not (element.emax <= 100 and step >= 2.0**-80):
        return False
    if isinstance(fmt.scale, Exponent):
        return True
    if not _holds(fmt.scale):
        return False
    bits = sum(e.mantissa_bits + 1 if isinstance(e, Float | Fixed) else 24 for e in (element, fmt.scale))
    return isinstance(fmt, Bdr) or fmt.outer is None or isinstance(element, Posit | Lookup) or bits <= 24


def _grid(element: Float | Fixed) -> _native.Grid:
    g = _native.Grid()
    g.bits, g.m = element.bits, element.mantissa_bits
    # The steps of fixed point are even: all values lie in or below the top binade.
    g.emin = element.emin if isinstance(element, Float) else element.emax
    g.has_nan = element.has_nan
    g.nan = nan_code(element) if element.has_nan else 0
    g.signed_zero = element.signed_zero
    if isinstance(element, Float):
        g.limit_above = g.limit_below = int(
            encode(element, np.array([element.max]), "toward_zero", "saturate", None)[0]
        )
        g.inf = ((1 << element.exponent_bits) - 1) << element.mantissa_bits if element.has_inf else 0
        g.sign = _native.Sign.bit
    else:
        g.limit_above, g.limit_below = element.steps, round(-element.min / element.smallest_normal)
        g.inf = 0
        signs = {"unsigned": _native.Sign.none, "sign_magnitude": _native.Sign.bit}
        g.sign = signs.get(element.coding, _native.Sign.twos_complement)
    g.quick = g.m <= 22 and element.emax + 24 - g.m <= 127 and g.emin - g.m >= -90
    return g


def _scales(p: _native.Format, fmt: Block | Bdr, options: Options) -> None:
    element, scale = fmt.element, fmt.scale
    p.scale_bits, p.scale_nan = scale.bits, nan_code(scale) if scale.has_nan else -1
    p.element_max = element.max
    p.block = fmt.size if isinstance(fmt.size, int) else 2**40  # the whole line
    if isinstance(scale, Exponent):
        p.scales = _native.Scales.power_of_two
        p.emax, p.scale_emin, p.scale_emax, p.scale_bias = element.emax, scale.emin, scale.emax, scale.bias
        p.scale_zero = scale.emin if options.zero_block == "smallest" else min(max(0, scale.emin), scale.emax)
        _rule(p, element, options.scale_rule)
    else:
        assert isinstance(scale, Float | Fixed)
        p.scales, p.scale_grid = _native.Scales.real, _grid(scale)
        smallest, one = scale.smallest_subnormal, min(1.0, scale.max)
        codes = encode(scale, np.array([smallest, one]), "nearest_even", "saturate", None)
        p.scale_smallest = int(codes[0])
        p.scale_of_zeros = int(codes[0] if options.zero_block == "smallest" else codes[1])
    if isinstance(fmt, Bdr):
        p.scales, p.sub_block = _native.Scales.shifted, fmt.k2
        p.shift_bits, p.largest_shift = fmt.d2, fmt.largest_shift
    elif fmt.outer is not None:
        p.scales, p.fill = _native.Scales.two_level, fmt.scale.max * element.max


def _rule(p: _native.Format, element: Element, name: str) -> None:
    """Set what native/jobs/job.hpp says of scale rules."""
    rule = SCALE_RULES[name](element)
    p.rule_plus, p.rule_first = rule.plus, rule.first(23)
