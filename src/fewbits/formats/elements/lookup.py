"""A list of values that a code picks from: binary weights, codebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import frexp
from typing import ClassVar

from fewbits.errors import FormatError
from fewbits.formats.format import Element

_BEYOND = 2.0**128 - 2.0**103  # from here on float32 rounds to infinity


@dataclass(frozen=True, repr=False)
class Lookup(Element):
    """A list of values; the code is the position in the list.

    A tie between two values rounds to the upper one if its code is even, else to the lower one.
    """

    values: tuple[float, ...] = field(metadata={"key": "*"})

    kind: ClassVar[str] = "lookup"

    def __post_init__(self) -> None:
        values = _numbers(self.values)
        object.__setattr__(self, "values", values)
        if not 2 <= len(values) <= 65536:
            raise FormatError(f"lookup: {len(values)} values; give 2 to 65536 different ones")
        _refuse_repeated(values)
        if not all(abs(v) < _BEYOND for v in values) or max(values) <= 0:
            raise FormatError("lookup: every value must be within float32's range and the largest above zero")

    @property
    def bits(self) -> int:
        """Width of one code."""
        return (len(self.values) - 1).bit_length()

    @property
    def code_count(self) -> int:
        """One for each value."""
        return len(self.values)

    @property
    def max(self) -> float:
        """Largest value."""
        return max(self.values)

    @property
    def min(self) -> float:
        """Most negative value."""
        return min(self.values)

    @property
    def emin(self) -> int:
        """Exponent of the smallest magnitude above zero."""
        return _exponent_of(self.smallest_normal)

    @property
    def emax(self) -> int:
        """Exponent of the largest value."""
        return _exponent_of(self.max)

    @property
    def has_zero(self) -> bool:
        """Whether zero is in the list."""
        return 0.0 in self.values

    @property
    def finest_step(self) -> float:
        """Smallest distance between two values."""
        rising = sorted(self.values)
        return min(high - low for low, high in pairwise(rising))

    @property
    def smallest_normal(self) -> float:
        """Smallest magnitude above zero."""
        return min(abs(v) for v in self.values if v)

    smallest_subnormal = smallest_normal


def _numbers(given: Iterable[float] | str) -> tuple[float, ...]:
    """Return a list as floats with one zero: the sign of -0.0 is dropped."""
    try:
        if not isinstance(given, str):
            return tuple(float(v) + 0.0 for v in given)
    except (TypeError, ValueError, OverflowError):
        pass
    raise FormatError(f"lookup: values={given!r:.60} are not a list of numbers, such as (-1.0, 0.0, 1.0)")


def _refuse_repeated(values: tuple[float, ...]) -> None:
    """Raise FormatError where a value is in the list more than once."""
    value, count = Counter(values).most_common(1)[0]
    if count > 1:
        often = "twice" if count == 2 else f"{count} times"
        shown = repr(value).removesuffix(".0")
        raise FormatError(f"lookup: {shown} is there {often}; give 2 to 65536 different values")


def _exponent_of(value: float) -> int:
    """Floor of log2 of a positive float, from its bits."""
    return frexp(value)[1] - 1
