"""A stand-in for what a format costs in hardware: area of a dot product times memory, relative to FP8 E4M3.

It is a proxy: it counts bits of multipliers, shifters and adders, it does not synthesize anything. Its shape
follows With Shared Microexponents, section 4.2: a 64-value dot product, a fixed-point sum of at most 25
bits, and a tile of 256 values moved over an interface of 64 bytes.
"""

from __future__ import annotations

from math import ceil

from fewbits.formats.blocks import Bdr, Block
from fewbits.formats.elements import Element, Fixed, Float, Posit
from fewbits.formats.format import Format

_VALUES, _TILE, _BEAT_BITS, _SUM_BITS = 64, 256, 512, 25


def _significand_and_range(element: Element) -> tuple[int, int]:
    """Return the bits that are multiplied and the binades that one operand's exponent spans."""
    if isinstance(element, Float):
        return element.mantissa_bits + 1, element.emax - element.emin
    if isinstance(element, Fixed):
        return element.mantissa_bits + 1, 0
    if isinstance(element, Posit):
        return max(1, element.bits - 2 - element.es), 2 * element.emax
    return element.bits, 0


def area_bits(fmt: Format) -> float:
    """Return the bits of multipliers, aligning shifters and adders of a 64-value dot product."""
    element = fmt if isinstance(fmt, Element) else fmt.element  # type: ignore[attr-defined]
    width, binades = _significand_and_range(element)
    shift = 2 * (fmt.largest_shift if isinstance(fmt, Bdr) else binades)
    sum_bits = min(_SUM_BITS, 2 * width + shift)
    shared = fmt.k2 if isinstance(fmt, Bdr) else 1  # one shifter for the sum of a sub-block's products
    per_value = width**2 + sum_bits * shift.bit_length() / shared + sum_bits
    per_block = 0.0
    if isinstance(fmt, Block | Bdr) and isinstance(fmt.size, int):
        # A power of two adds exponents; a real scale multiplies significands.
        one = fmt.scale.bits if not isinstance(fmt.scale, Float) else (fmt.scale.mantissa_bits + 1) ** 2
        per_block = one * _VALUES / fmt.size
    return _VALUES * per_value + per_block


def memory_beats(fmt: Format) -> int:
    """Return the 64-byte transfers that a tile of 256 values takes, scales included."""
    return ceil(fmt.bits_per_value * _TILE / _BEAT_BITS)


def area_memory_proxy(fmt: Format) -> float:
    """Return area times memory relative to FP8 E4M3; a proxy, smaller is better."""
    unit = Float(4, 3, 7, "fn")
    return area_bits(fmt) / area_bits(unit) * memory_beats(fmt) / memory_beats(unit)
