"""Rounding to a format in whole numbers, from its list of values alone: it shares no arithmetic with the
kernels.

Every float64 is a whole number of units of 2^-1100, so Python's integers hold each value, middle and
distance exactly.
"""

from bisect import bisect_right
from fractions import Fraction
from functools import cache

import numpy as np

from fewbits.formats import Element, Exponent, Fixed, Float, Lookup, Posit, values

_UNITS = 1100


def units(x: float) -> int:
    """Return ``x`` in units of 2^-1100."""
    n, d = float(x).as_integer_ratio()
    return n * (2**_UNITS // d)


def posit_value(code: int, bits: int, es: int) -> Fraction | None:
    """Return the value of a posit, None for NaR, read bit by bit as the standard's section 3.4 draws it."""
    if code == 0:
        return Fraction(0)
    if code == 2 ** (bits - 1):
        return None
    if code > 2 ** (bits - 1):
        positive = posit_value(2**bits - code, bits, es)
        assert positive is not None
        return -positive
    stream = [code >> i & 1 for i in range(bits - 2, -1, -1)]
    run = next((i for i, bit in enumerate(stream) if bit != stream[0]), len(stream))
    regime = run - 1 if stream[0] else -run
    rest = stream[run + 1 :] + [0] * es
    exponent = sum(bit << (es - 1 - i) for i, bit in enumerate(rest[:es]))
    significand = 1
    for bit in rest[es:]:
        significand = 2 * significand + bit
    scale = regime * 2**es + exponent - len(rest[es:])
    return Fraction(significand * 2 ** max(scale, 0), 2 ** max(-scale, 0))


class Exact:
    """One element format as a sorted list of values; :meth:`code` rounds to it."""

    def __init__(self, element: Element) -> None:
        table = values(element)
        self.element = element
        self.nan = {int(c) for c in np.flatnonzero(np.isnan(table))}
        self.inf = {float(table[c]): int(c) for c in np.flatnonzero(np.isinf(table))}
        numbers = {units(table[c]): int(c) for c in reversed(np.flatnonzero(np.isfinite(table)))}
        if isinstance(element, Fixed) and element.coding == "symmetric":
            del numbers[min(numbers)]  # the code that symmetric integers leave unused
        self.rising = sorted(numbers)
        self.codes = [numbers[v] for v in self.rising]
        self.signed = isinstance(element, Float) or (
            isinstance(element, Fixed) and element.coding == "sign_magnitude"
        )
        self.middles = self._middles()

    def _middles(self) -> list[int]:
        """Return twice the place between neighbours where nearest changes."""
        pairs = list(zip(self.rising, self.rising[1:], strict=False))
        if not isinstance(self.element, Posit):
            return [low + high for low, high in pairs]
        bits, es = self.element.bits + 1, self.element.es
        positive = (posit_value(c, bits, es) for c in range(1, 2 ** (bits - 1)))
        upper = [units(float(v)) for v in positive if v is not None]
        longer = [-v for v in reversed(upper)] + [0, *upper]
        return [2 * longer[bisect_right(longer, low)] for low, _ in pairs]

    def code(self, x: float, rounding: str, overflow: str, draw: int = 0, bits: int = 32) -> int | None:
        """Return the code of ``x``; None is NaN, whatever its code."""
        if np.isnan(x) or (isinstance(self.element, Posit) and np.isinf(x)):
            return None
        if isinstance(self.element, Exponent) and x < 0:
            return None
        if np.isinf(x):
            return self._beyond(x > 0, overflow)
        exact = units(x)
        if exact > self.rising[-1] or exact < self.rising[0]:
            return self._outside(exact, rounding, overflow, draw, 2**bits)
        low = bisect_right(self.rising, exact) - 1
        if self.rising[low] == exact:
            return self._signed_zero(low, x)
        up = self._goes_up(low, exact, rounding, draw, 2**bits)
        return self._signed_zero(low + up, x)

    def _signed_zero(self, at: int, x: float) -> int:
        if self.rising[at] == 0 and self.signed and np.signbit(x):
            minus = 2 ** (self.element.bits - 1)
            return self.codes[at] if minus in self.nan else minus
        return self.codes[at]

    def _goes_up(self, low: int, exact: int, rounding: str, draw: int, one: int) -> bool:
        below, above = self.rising[low], self.rising[low + 1]
        if rounding in ("up", "down"):
            return rounding == "up"
        if rounding == "toward_zero":
            return exact > 0 if below == -above else abs(above) < abs(below)
        if rounding == "stochastic":
            return self._by_chance(exact, below, above, draw, one)
        if isinstance(self.element, Posit) and 0 in (below, above):
            return below == 0  # nothing but zero rounds to zero
        if 2 * exact != self.middles[low]:
            return 2 * exact > self.middles[low]
        if rounding == "nearest_away":
            return abs(above) >= abs(below)
        return self._even_is_above(below, above, self.codes[low + 1])

    def _even_is_above(self, below: int, above: int, code_above: int) -> bool:
        """Whether a tie between neighbours goes to the upper one: to the even code.

        With no mantissa bit the one significand there is, 1, is odd: a tie goes to the larger magnitude,
        except that zero is even.
        """
        if isinstance(self.element, Float | Exponent) and self.element.mantissa_bits == 0:
            return above == 0 if 0 in (below, above) else above > 0
        if isinstance(self.element, Fixed):
            return above // (above - below) % 2 == 0
        return code_above % 2 == 0

    def _by_chance(self, exact: int, below: int, above: int, draw: int, one: int) -> bool:
        """Floats and fixed point move away from zero by chance, tables move up."""
        part = (exact - below) * one // (above - below)
        if isinstance(self.element, Posit | Lookup) or exact > 0:
            return part + draw >= one
        return (above - exact) * one // (above - below) + draw < one

    def _outside(self, exact: int, rounding: str, overflow: str, draw: int, one: int) -> int | None:
        """Round on the grid as it would go on; what does not come back to the end is overflow."""
        positive = exact > 0
        end = self.rising[-1] if positive else self.rising[0]
        if isinstance(self.element, Exponent) and exact < self.rising[0]:
            return self.codes[0]
        if not isinstance(self.element, Float | Exponent) or overflow == "saturate":
            return self._beyond(positive, "saturate")
        step = units(2.0 ** (self.element.emax - self.element.mantissa_bits))
        past = abs(exact) - abs(end)
        away = {"up": positive, "down": not positive, "toward_zero": False}.get(rounding)
        if away is None and past < step:
            odd_end = self.codes[-1] % 2 == 1 or self.element.mantissa_bits == 0
            away = {
                "nearest_even": 2 * past > step or (2 * past == step and odd_end),
                "nearest_away": 2 * past >= step,
                "stochastic": past * one // step + draw >= one,
            }[rounding]
        return self._beyond(positive, overflow if away is not False else "saturate")

    def _beyond(self, positive: bool, overflow: str) -> int | None:
        if overflow == "nan":
            return None
        if overflow == "inf":
            return self.inf[np.inf if positive else -np.inf]
        return self.codes[-1 if positive else 0]


@cache
def exact(element: Element) -> Exact:
    """Return the list of values of an element, made once."""
    return Exact(element)
