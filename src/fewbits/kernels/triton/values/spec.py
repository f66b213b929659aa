"""A format and its options as the constants that kernels are compiled for, and which of them there are."""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np

from fewbits.formats import Element, Format, ValueGrid
from fewbits.kernels.bits.options import Options
from fewbits.kernels.bits.scale_rules import MEAN_RULES, SCALE_RULES
from fewbits.kernels.native.jobs.tables import table
from fewbits.kernels.reference.values.encode import encode

MOST_IN_TILE = (
    1024  # values of a block that one program holds; of longer ones a pass before finds the largest
)
_CHUNK = 512  # values side by side that a program takes where no block says how many


class Grid(NamedTuple):
    """An element whose values are multiples of a power of two in each binade."""

    bits: int
    m: int  # bits behind the leading one
    emin: int  # the binade below which the step stays the same
    emax: int  # of the largest value
    above: int  # largest code without a sign
    below: int  # the same of negative values
    sign: str  # "bit", "twos_complement" or "none"
    signed_zero: bool
    nan: int | None
    inf: int | None


class Table(NamedTuple):
    """An element that is a list of values, which kernels look up."""

    bits: int
    steps: int  # of bisection
    places: int  # values
    nan: int | None
    infinity_is_nan: bool
    negative_is_nan: bool


class Quick(NamedTuple):
    """What values/quick.py multiplies by; factors come in pairs where one of float32 does not reach."""

    largest: float
    largest_below: float  # the largest magnitude of negative values
    smallest_normal: float
    to_count: float  # to 2^16 times the steps of the smallest binade
    to_code: float  # to numbers whose bits begin with the code
    to_code_too: float
    from_code: float
    from_code_too: float


class Spec(NamedTuple):
    """How kernels convert: what does not change from one call to the next."""

    grid: Grid | None
    table: Table | None
    rounding: str
    random_bits: int
    overflow: str
    nonfinite: str
    scaling: str  # "none", "power", "real", "outer"
    real: bool  # whether scales are numbers to divide by
    scale: Grid  # bits, nan and binades of a scale that is a power of two; all of a real one
    plus: int  # of the scale rule
    first: int  # likewise, in units of 2^-23
    of_zeros: int  # exponent, or code, of the scale of a block of zeros
    smallest: int  # the code that a scale takes instead of zero
    element_emax: int
    element_max: float
    one_over_max: float  # in float32
    fill: float  # largest scale times largest element
    per_scale: int  # values; 0 where the whole line or tensor shares a scale
    per_shift: int  # values; 0 without shifts
    shift_bits: int
    largest_shift: int
    shared: str  # what is measured before: "" (nothing), "block", "channel" or "tensor"
    width: int  # values of a block, or of a part of it, that a program holds side by side
    quick: Quick | None  # where values/quick.py rounds


_NO_GRID = Grid(0, 0, 0, 0, 0, 0, "none", False, None, None)


def supports(format: Format, options: Options) -> bool:
    """Return whether the kernels of Triton convert this case of float32, bfloat16 or float16."""
    return spec(format, options) is not None


@lru_cache(maxsize=512)
def spec(format: Format, options: Options) -> Spec | None:
    """Return the constants for the kernels, or None if they do not support the format.

    Left to operations of torch: scales from a mean, block elements of a list beyond 2^100 or finer than
    2^-80, shifts shared by a number of values that is no power of two, outer scales over more values than a
    program holds, and those whose products float32 does not hold.
    """
    element, (_, scales, shifts, outer) = format.element, format.groups
    if (
        options.scale_rule in MEAN_RULES
        or not _holds(element)
        or not (scales is None or _holds_scales(format))
    ):
        return None
    power = scales is not None and scales.power_of_two
    zero = options.zero_block == "smallest"
    scale, plus, first, of_zeros, smallest = _NO_GRID, 0, 0, 0, 0
    if scales is not None and power:
        of_scale = scales.element
        scale = Grid(
            scales.bits, 0, of_scale.emin, of_scale.emax, 0, 0, "none", False, of_scale.nan_code, None
        )
        of_zeros = of_scale.emin if zero else min(max(0, of_scale.emin), of_scale.emax)
        rule = SCALE_RULES[options.scale_rule](element)
        plus, first = rule.plus, rule.first(23)
    elif scales is not None:
        assert scales.element.grid is not None
        scale = _grid(scales.element, scales.element.grid)
        smallest_scale = scales.element.smallest_subnormal
        one = max(min(1.0, scales.element.max), smallest_scale)
        codes = encode(scales.element, np.array([smallest_scale, one]), "nearest_even", "saturate", None)
        smallest, of_zeros = int(codes[0]), int(codes[0] if zero else codes[1])
    size = None if scales is None else scales.size
    shared = "" if not isinstance(size, str) else size
    if outer is not None:
        shared = str(outer.size)
    elif isinstance(size, int) and size > MOST_IN_TILE:
        shared = "block"
    within = isinstance(size, int) and size <= MOST_IN_TILE
    return Spec(
        grid=None if element.grid is None else _grid(element, element.grid),
        table=_table(element, options) if element.grid is None else None,
        rounding=options.rounding,
        random_bits=options.random_bits,
        overflow=options.overflow,
        nonfinite=options.nonfinite,
        scaling="none" if scales is None else "power" if power else "outer" if outer is not None else "real",
        real=scales is not None and not power,
        scale=scale,
        plus=plus,
        first=first,
        of_zeros=of_zeros,
        smallest=smallest,
        element_emax=element.emax,
        element_max=float(np.float32(element.max)),
        # Of tiny elements it is infinite, but not where their product with the largest scale is one or more.
        one_over_max=0.0 if outer is None else float(np.float32(1) / np.float32(element.max)),
        fill=0.0 if outer is None or scales is None else float(np.float32(scales.element.max * element.max)),
        per_scale=size if isinstance(size, int) else 0,
        per_shift=shifts.size if shifts is not None and isinstance(shifts.size, int) else 0,
        shift_bits=0 if shifts is None else shifts.bits,
        largest_shift=0 if shifts is None else format.largest_shift,
        shared=shared,
        width=_power_above(size) if within and isinstance(size, int) else _CHUNK,
        quick=_quick(format, options),
    )


def _quick(format: Format, options: Options) -> Quick | None:
    """Return the factors of quick rounding, or None where not all that it relies on holds."""
    element, grid, scales = format.element, format.element.grid, format.groups.scales
    of_draws = options.rounding == "stochastic" and options.random_bits == 16
    if grid is None or options.overflow != "saturate" or not (of_draws or options.rounding == "nearest_even"):
        return None
    m, emin = grid.mantissa_bits, grid.emin
    # Sums with the number whose last bit is a step, and counts of 16 bits behind it, are not to overflow;
    # half a step is to be far above the subnormals, which products may round to.
    if m > 14 or element.emax + 23 - m > 120 or emin - m < -100:
        return None
    if (
        scales is not None
        and scales.power_of_two
        and not (scales.element.emin >= -127 and scales.element.emax <= 127 and format.largest_shift <= 20)
    ):
        return None
    half = (126 + emin) // 2
    return Quick(
        largest=element.max,
        largest_below=max(-element.min, 0.0),
        smallest_normal=2.0**emin,
        to_count=2.0 ** (m - emin + 16),
        to_code=2.0**-half,
        to_code_too=2.0 ** (half - 126 - emin),
        from_code=2.0 ** (126 + emin - half),
        from_code_too=2.0**half,
    )


def codes_in_unit(bits: int) -> int:
    """Return how many codes fill whole bytes: 2 of 4 bits fill one, 4 of 6 bits fill three."""
    return 8 // gcd(8, bits)


def _power_above(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _holds(element: Element) -> bool:
    return element.grid is not None or element.bits <= 16


def _holds_scales(format: Format) -> bool:
    element, (_, scales, shifts, outer) = format.element, format.groups
    assert scales is not None
    # Beyond these ends a code of the table may depend on bits that float32 loses in scaling.
    if element.grid is None and not (element.emax <= 100 and element.finest_step >= 2.0**-80):
        return False
    if shifts is not None:
        powers = [isinstance(n, int) and n & (n - 1) == 0 for n in (shifts.size, scales.size)]
        if not all(powers) or not isinstance(scales.size, int) or scales.size > MOST_IN_TILE:
            return False
    if scales.power_of_two:
        return True
    if not (_holds(scales.element) and scales.element.grid is not None):
        return False
    if outer is None:
        return True
    # Element times scale is then exact in float32, and the outer scale rounds once.
    if not isinstance(scales.size, int) or scales.size > MOST_IN_TILE or element.grid is None:
        return False
    bits = element.grid.mantissa_bits + scales.element.grid.mantissa_bits + 2
    least = element.smallest_subnormal * scales.element.smallest_subnormal
    return bits <= 24 and least >= 2.0**-126


def _grid(element: Element, grid: ValueGrid) -> Grid:
    largest = encode(element, np.array([element.max]), "toward_zero", "saturate", None)
    above = int(largest[0])
    uneven = element.min != -element.max  # in steps: only fixed point has another limit below zero
    return Grid(
        element.bits,
        grid.mantissa_bits,
        grid.emin,
        element.emax,
        above,
        round(-element.min / element.smallest_normal) if uneven else above,
        grid.sign,
        element.signed_zero,
        element.nan_code,
        element.inf_code,
    )


def _table(element: Element, options: Options) -> Table:
    found = table(element, options.rounding, options.overflow)
    return Table(
        element.bits,
        len(found.keys).bit_length(),
        len(found.codes),
        element.nan_code,
        element.reals_only,
        element.power_of_two,
    )
