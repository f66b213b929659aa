"""Which of some formats is the narrowest."""

from __future__ import annotations

from collections.abc import Iterable

from fewbits.errors import ArgumentError, FormatError
from fewbits.formats.grammar import parse


def element_bits(format: str) -> float:
    """Return the bits of an element; of ``fp64``, which is a dtype and no format here, 64."""
    return _width(format)[0]


def narrowest(formats: Iterable[str]) -> str | None:
    """Return the format whose elements have the fewest bits; None of none.

    Of elements of one width that with fewer bits of scales wins, then that with fewer bits of mantissa:
    of the two eight-bit floats E5M2. What is no format, as a dtype without a name here, counts as the widest.

    Raises:
        ArgumentError: one text was given, whose letters are no formats.
    """
    if isinstance(formats, str):
        raise ArgumentError(f"formats={formats!r:.60}, a text; expected a list of formats: put it into one")
    return min(sorted(formats), key=_width, default=None)


def _width(format: str) -> tuple[float, float, float]:
    try:
        found = parse(format)
    except FormatError:
        return (64.0, 64.0, 52.0)
    grid = found.element.grid
    mantissa = found.element.bits if grid is None else grid.mantissa_bits
    return found.element.bits, found.bits_per_value, mantissa
