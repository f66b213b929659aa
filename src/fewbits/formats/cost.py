"""A proxy for the hardware cost of a format: area of a dot product times memory, relative to FP8 E4M3.

It counts the bits of multipliers, shifters and adders; nothing is synthesized. The model follows With Shared
Microexponents, section 4.2: a 64-value dot product, a fixed-point sum of at most 25 bits, and a tile of 256
values moved over an interface of 64 bytes.
"""

from __future__ import annotations

from math import ceil

from fewbits.formats.blocks import channel_bits_per_value
from fewbits.formats.elements import Fixed, Float, Lookup, Posit
from fewbits.formats.format import Element, Format, Size

_VALUES, _TILE, _BEAT_BITS, _SUM_BITS = 64, 256, 512, 25


def _significand_and_range(element: Element) -> tuple[int, int]:
    """Return the bits of the significand and the number of binades that the exponent spans."""
    match element:
        case Element(grid=grid) if grid is not None:
            return grid.mantissa_bits + 1, element.emax - grid.emin
        case Posit():
            return max(1, element.bits - 2 - element.es), element.emax - element.emin
        case Lookup():
            return _table_width(element), 0
    return element.bits, 0  # a power of two: adding exponents


def _table_width(element: Lookup) -> int:
    """Return the bits of a table's values as integers of one step: values are multiplied, not codes."""
    ratios = [abs(v).as_integer_ratio() for v in element.values]
    step = max(denominator for _, denominator in ratios)  # a power of two, as every value is a binary number
    return max((n * (step // d)).bit_length() for n, d in ratios)


def _scale_area(scale: Element) -> int:
    """Return the bits that apply a scale: a power of two adds exponents, others multiply significands."""
    match scale:
        case Float():
            return (scale.mantissa_bits + 1) ** 2
        case Fixed():
            return scale.bits**2
    return scale.bits


def area_bits(format: Format, length: int | None = None) -> float:
    """Return the bits of multipliers, aligning shifters and adders of a 64-value dot product.

    Args:
        format: of both factors.
        length: as :func:`area_memory_proxy` takes it.
    """
    _, scales, shifts, _ = format.groups
    width, binades = _significand_and_range(format.element)
    shift = 2 * (binades if shifts is None else format.largest_shift)
    sum_bits = min(_SUM_BITS, 2 * width + shift)
    products = shifts.size if shifts is not None and isinstance(shifts.size, int) else 1  # per shifter
    area = _VALUES * (width**2 + sum_bits * shift.bit_length() / products + sum_bits)
    if scales is None:
        return area
    return area + _scale_area(scales.element) * _VALUES * _per_value(scales.size, length)


def _per_value(size: Size, length: int | None) -> float:
    """Return how many scales a value has."""
    if isinstance(size, str):
        return 0.0 if size == "tensor" or length is None else 1 / length
    return 1 / size if length is None else ceil(length / size) / length


def memory_beats(format: Format, length: int | None = None) -> int:
    """Return the 64-byte transfers that a tile of 256 values takes, scales included."""
    bits = format.bits_per_value if length is None else channel_bits_per_value(format, length)
    return ceil(bits * _TILE / _BEAT_BITS)


def area_memory_proxy(format: Format, length: int | None = None) -> float:
    """Return area times memory relative to FP8 E4M3; a proxy, smaller is better.

    Args:
        format: of both factors.
        length: values of a channel, which ends the last block; None: so many that blocks are full, and a
            scale per channel counts nothing.

    Raises:
        ArgumentError: ``length`` is no integer from 1 up.
    """
    unit, beats = Float(4, 3, 7, "fn"), memory_beats(format, length)  # which checks the length
    area = area_bits(format, length) / area_bits(unit)
    return area * beats / memory_beats(unit)
