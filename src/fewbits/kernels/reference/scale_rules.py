"""The eight rules in use for a power-of-two scale, each defined on the bits of the block's largest magnitude.

All give ``e`` with scale 2^e. In the formulas a is the largest magnitude of the block, M the largest
element, emax its exponent and m its mantissa bits (for fixed point: the bits behind the leading one).
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits.formats import Element, Fixed, Float

Integers = NDArray[np.int64]
Amax = NDArray[np.floating[Any]]  # float32 or float64, finite, >= 0


def _mantissa_bits(element: Element) -> int:
    return element.mantissa_bits if isinstance(element, Float | Fixed) else 0


def floor_log2(a: Amax) -> Integers:
    """Return floor(log2 a) from the bits; subnormals are exact."""
    return np.frexp(a)[1].astype(np.int64) - 1


def _significand(a: Amax) -> NDArray[np.float64]:
    """Return a / 2^floor(log2 a), in [1, 2), exactly."""
    return np.frexp(a.astype(np.float64))[0] * 2


def _floor(a: Amax, element: Element) -> Integers:
    """floor(log2 a) - emax (OCP MX v1.0, section 6.3)."""
    return floor_log2(a) - element.emax


def _ceil(a: Amax, element: Element) -> Integers:
    """ceil(log2 a) - emax."""
    return _floor(a, element) + (_significand(a) > 1)


def _rceil(a: Amax, element: Element) -> Integers:
    """The smallest power of two with a <= M 2^e, so that nothing saturates: ceil(log2(a / M)).

    Recipes for Pre-training LLMs with MXFP8, arXiv 2506.08027. The comparison is exact; a float32 quotient a
    / M gives the same, a product with float32(1/M) does not always.
    """
    return _floor(a, element) + (_significand(a) > element.max / 2.0**element.emax)


def _after_adding(a: Amax, fraction_of_binade: float) -> Integers:
    """Return floor(log2) after adding a fraction of a binade to the bits of a and letting it carry."""
    mantissa = np.finfo(a.dtype).nmant
    whole = a.view(np.int32 if a.dtype == np.float32 else np.int64)
    moved = whole.astype(np.int64) + int(fraction_of_binade * 2**mantissa)
    exponent = (moved >> mantissa) - (127 if a.dtype == np.float32 else 1023)
    return np.where(moved >> mantissa == 0, floor_log2(moved.astype(whole.dtype).view(a.dtype)), exponent)


def _even(a: Amax, element: Element) -> Integers:
    """floor(log2 of a rounded to m mantissa bits, half up) - emax (torchao's EVEN)."""
    return _after_adding(a, 2.0 ** -(_mantissa_bits(element) + 1)) - element.emax


def _one_seventy_five(a: Amax, element: Element) -> Integers:
    """As ``even`` with one mantissa bit for every element: up from 1.75 on (compressed-tensors adds 2^21)."""
    return _after_adding(a, 0.25) - element.emax


def _midmax(a: Amax, element: Element) -> Integers:
    """Up where a is past the middle of M and the next power of two (Brevitas)."""
    top = element.max / 2.0**element.emax
    return _floor(a, element) + (_significand(a) > (top + 2) / 2)


def _oas(a: Amax, element: Element) -> Integers:
    """floor(log2 bf16(a / M c)), c = 2 (2 - 2^-m) / (2 - 2^-(m+1)): 12/7 for FP4, 60/31 for E4M3 (Qwix)."""
    m = _mantissa_bits(element)
    factor = 2 * (2 - 2.0**-m) / (2 - 2.0 ** -(m + 1))
    with np.errstate(over="ignore"):
        scaled = ((a / a.dtype.type(element.max)) * a.dtype.type(factor)).astype(np.float32)
    bits = scaled.view(np.int32).astype(np.int64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16  # to bfloat16, ties to even
    exponent = floor_log2(rounded.astype(np.int32).view(np.float32))
    # What leaves float32 is beyond every scale: the caller clamps.
    return np.where(rounded == 0, -1000, np.where(rounded >= 0x7F800000, 1000, exponent))


def _double_floor(a: Amax, element: Element) -> Integers:
    """One binade above floor (AWS Neuron)."""
    return _floor(a, element) + 1


SCALE_RULES: MappingProxyType[str, Callable[[Amax, Element], Integers]] = MappingProxyType(
    {
        "floor": _floor,
        "ceil": _ceil,
        "rceil": _rceil,
        "even": _even,
        "1.75": _one_seventy_five,
        "midmax": _midmax,
        "oas": _oas,
        "double-floor": _double_floor,
    }
)
