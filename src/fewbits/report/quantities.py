"""How quantities are written: one spelling for bytes, decibels, fractions and names in every report."""

from __future__ import annotations

import math

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def visible(text: str) -> str:
    r"""Write `text` so that every character of it shows.

    Names come from files of strangers. A terminal would obey an escape sequence in one, a direction mark
    would make one look like another, and a lone surrogate cannot be encoded: such characters are written as
    `\x1b`.
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def size(count: float) -> str:
    """Write a number of bytes with three significant digits in binary units: `1536` is `1.50 KiB`."""
    if count < 1023.5:
        return f"{count:.0f} B"
    value, unit = float(count), 0
    while value >= 1023.5 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{three_digits(value)} {_UNITS[unit]}"


def three_digits(value: float) -> str:
    """Write a number of at least one with three significant digits and no exponent."""
    return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f}"


def bits(value: float) -> str:
    """Write bits per value with two decimals, enough for a scale shared by 64 values."""
    return f"{value:.2f}"


def decibels(value: float) -> str:
    """Write a QSNR in dB; an infinite one means that no value changed, and says so."""
    if math.isnan(value):
        return "n/a"
    if value == math.inf:
        return "exact"
    return f"{value:.1f}"


def percent(fraction: float) -> str:
    """Write a fraction as a percentage that never rounds something to nothing."""
    if math.isnan(fraction):
        return "n/a"
    if fraction == 0:
        return "0"
    value = 100 * fraction
    return "<0.01" if value < 0.01 else f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def plain(value: float, digits: int) -> str:
    """Write a number with a fixed number of decimals; a model that a format broke scores `NaN`."""
    return "NaN" if math.isnan(value) else f"{value:.{digits}f}"


def signed(value: float, digits: int) -> str:
    """Write a difference with its sign; an exact zero is `0`, and what only rounds to zero has no sign."""
    if math.isnan(value):
        return "NaN"
    text = f"{value:+.{digits}f}"
    return "0" if value == 0 else text if text.strip("+-0.") else text[1:]


def margin(value: float, digits: int) -> str:
    """Write half of an interval; a single seed has none."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def relative(value: float) -> str:
    """Write a relative error with two significant digits."""
    return "0" if value == 0 else f"{value:.1e}" if value < 0.01 or value >= 1000 else f"{value:.2g}"


def condition(value: float) -> str:
    """Write a condition number; an infinite one means a singular matrix, and says so."""
    return "singular" if value == math.inf else f"{value:.2e}"


def shape(extents: tuple[int, ...]) -> str:
    """Write a shape as `4096x11008`; a scalar's is `scalar`."""
    return "x".join(str(n) for n in extents) or "scalar"
