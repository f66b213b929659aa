"""The eight rules for power-of-two scales as data: the significand from which each rounds the exponent up.

All give ``e`` with scale 2^e. In the formulas a is the largest magnitude of the block, M the largest
element, emax its exponent and m its mantissa bits (for fixed point: the bits behind the leading one). With
a = s 2^k, 1 <= s < 2, every rule is ``e = k - emax + plus``, and one more where s lies beyond a step.

A new rule is a function here and its line in :data:`SCALE_RULES`: the definition, the compiled kernels and
the names that ``scale_rule=`` takes come from that table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from fewbits.errors import ArgumentError
from fewbits.formats import Element


@dataclass(frozen=True)
class Rule:
    """The distance of the exponent of the scale above floor(log2 a) - emax."""

    plus: int  # always added
    step: Fraction  # one more above this significand; 2 for never
    closed: bool  # whether the step itself counts as above

    def first(self, bits: int) -> int:
        """Return the smallest fraction beyond the step, in units of 2^-bits; 2^bits where there is none."""
        count, rest = divmod((self.step - 1) * 2**bits, 1)
        return int(count) + (rest > 0 or not self.closed)


def _mantissa_bits(element: Element) -> int:
    return 0 if element.grid is None else element.grid.mantissa_bits


def _top(element: Element) -> Fraction:
    """Return the significand of the largest element, M / 2^emax."""
    return Fraction(element.max) / Fraction(2) ** element.emax


def _floor(element: Element) -> Rule:
    """floor(log2 a) - emax (OCP MX v1.0, section 6.3)."""
    return Rule(0, Fraction(2), True)


def _ceil(element: Element) -> Rule:
    """ceil(log2 a) - emax."""
    return Rule(0, Fraction(1), False)


def _rceil(element: Element) -> Rule:
    """The smallest power of two with a <= M 2^e: ceil(log2(a / M)).

    Recipes for Pre-training LLMs with MXFP8, arXiv 2506.08027. A float32 quotient a / M gives the same, a
    product with float32(1/M) does not always.
    """
    return Rule(0, _top(element), False)


def _even(element: Element) -> Rule:
    """floor(log2 of a rounded to m mantissa bits, half up) - emax (torchao's EVEN)."""
    return Rule(0, 2 - Fraction(1, 2 ** (_mantissa_bits(element) + 1)), True)


def _one_seventy_five(element: Element) -> Rule:
    """As ``even`` with one mantissa bit for every element: up from 1.75 on.

    compressed-tensors adds 2^21 for FP4 and FP8; for FP6 it takes ``even``.
    """
    return Rule(0, Fraction(7, 4), True)


def _midmax(element: Element) -> Rule:
    """Up where a is past the middle of M and the next power of two (Brevitas)."""
    return Rule(0, (_top(element) + 2) / 2, False)


def _oas(element: Element) -> Rule:
    """floor(log2 of a / M c rounded to 8 significant bits), c = 2 (2 - 2^-m) / (2 - 2^-(m+1)) (Qwix).

    c is 12/7 for FP4 and 60/31 for E4M3; the eight bits are bfloat16's. Qwix divides and multiplies in the
    type of a; here a / M c is exact and rounded once.
    """
    m = _mantissa_bits(element)
    factor = 2 * (2 - Fraction(1, 2**m)) / (2 - Fraction(1, 2 ** (m + 1)))
    # From 2^k (1 - 2^-9) on, a tie included, eight bits round to 2^k.
    step = _top(element) / factor * (1 - Fraction(1, 2**9))
    return Rule(-1, step, True) if step >= 1 else Rule(0, 2 * step, True)


def _double_floor(element: Element) -> Rule:
    """One binade above floor (AWS Neuron)."""
    return Rule(1, Fraction(2), True)


MEAN_RULES = ("absmean", "twn")
"""The rules for one float32 scale for ternary or binary values, chosen from the mean magnitude.

``absmean``: the mean of |x|; values are rounded to the nearest multiple (Ma et al., The Era of 1-bit LLMs,
2024, equations 1 to 3, for ternary; Rastegari et al., XNOR-Net, ECCV 2016, equation 6, for binary values).
``twn``: beyond 0.7 times the mean of |x| values are 1 or -1, else 0; the scale is the mean of |x| beyond
that (Li et al., Ternary Weight Networks, 2016, equations 3 and 6).
"""
TWN_THRESHOLD = 0.7  # times the mean magnitude


def refuse_amax(scale_rule: str, amax: float | None) -> None:
    """Raise ArgumentError if a largest magnitude is given to a rule that takes the mean."""
    if amax is not None:
        raise ArgumentError(
            f"amax={amax} with scale_rule={scale_rule!r}, which takes the mean of all values and not"
            " the largest: leave amax out, and give the whole tensor"
        )


SCALE_RULES: MappingProxyType[str, Callable[[Element], Rule]] = MappingProxyType(
    {
        "floor": _floor,
        "ceil": _ceil,
        "rceil": _rceil,
        "even": _even,
        "1.75": _one_seventy_five,
        "midmax": _midmax,
        "oas": _oas,
        "double_floor": _double_floor,
    }
)
