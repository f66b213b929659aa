"""How quantities are written: one spelling for bytes, decibels, fractions and names in every report."""

from __future__ import annotations

import math
import re

from rich.cells import cell_len

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_UNBROKEN = 24  # characters: a word that is not longer, such as the name of a format, stays on one line
_LONGEST_WORD = 30  # characters; a longer one is broken even without a separator
_LARGEST_WRITTEN_OUT = 1e9  # a loss that a format broke may have forty digits, and a table no room for them


def visible(text: str) -> str:
    r"""Write `text` so that every character of it shows.

    Names come from files of strangers. A terminal would obey an escape sequence in one, a direction mark
    would make one look like another, and a lone surrogate cannot be encoded: such characters are written as
    `\x1b`.
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def pieces(text: str) -> list[str]:
    """Split a text where a line may end: between words, and in those of over 24 characters at separators.

    A part without separators is split only after 30 characters.

    >>> pieces("mxfp8_e4m3 for layers.0.attention.k_proj.weight")
    ['mxfp8_e4m3 ', 'for ', 'layers.', '0.', 'attention.', 'k_', 'proj.', 'weight']
    """
    return [piece for word in re.findall(r"\S+\s*|\s+", visible(text)) for piece in _pieces_of_word(word)]


def _pieces_of_word(word: str) -> list[str]:
    if len(word.rstrip()) <= _UNBROKEN:
        return [word]
    return re.findall(rf"[^._/,:=\s-]{{1,{_LONGEST_WORD}}}[._/,:=\s-]*|[._/,:=\s-]+", word)


def capital(text: str) -> str:
    """Begin a text with a capital letter, and leave the others as they are: `BLEU`, `Agreement with FP32`."""
    return text[:1].upper() + text[1:]


def lines(text: str, width: int) -> list[str]:
    """Write a text in lines of at most `width` columns, or of one piece where that is longer."""
    filled = [""]
    for piece in pieces(text):
        if filled[-1] and cell_len((filled[-1] + piece).rstrip()) > width:
            filled.append("")
        filled[-1] += piece
    return [line.rstrip() for line in filled]


def shortened(text: str, width: int, most: int) -> list[str]:
    """Write a text in at most `most` such lines; an ellipsis stands for those before the last one."""
    filled = lines(text, width)
    return filled if len(filled) <= most else [*filled[: most - 1], f"…{filled[-1]}"]


def size(count: float) -> str:
    """Write a number of bytes with three significant digits in binary units: `1536` is `1.50 KiB`."""
    if count < 1023.5:
        return f"{count:.0f} B"
    value, unit = float(count), 0
    while value >= 1023.5 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{three_digits(value)} {_UNITS[unit]}"


def three_digits(value: float) -> str:
    """Write a number of at least one with three significant digits, and no exponent below a billion."""
    if value >= _LARGEST_WRITTEN_OUT:
        return f"{value:.2e}"
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
    """Write a number with a fixed number of decimals, and one of a billion or more with an exponent.

    A model that a format broke scores `NaN`.

    >>> plain(1.5, 2), plain(1.5e30, 2)
    ('1.50', '1.500e+30')
    """
    return "NaN" if math.isnan(value) else _fixed(value, digits)


def signed(value: float, digits: int) -> str:
    """Write a difference with its sign; an exact zero is `0`, and what only rounds to zero has no sign."""
    if math.isnan(value):
        return "NaN"
    text = _fixed(value, digits, "+")
    return "0" if value == 0 else text if text.strip("+-0.") else text[1:]


def margin(value: float, digits: int) -> str:
    """Write half of an interval; a single seed has none."""
    return "-" if math.isnan(value) else _fixed(value, digits)


def _fixed(value: float, digits: int, sign: str = "") -> str:
    written_out = abs(value) < _LARGEST_WRITTEN_OUT
    return f"{value:{sign}.{digits}f}" if written_out else f"{value:{sign}.3e}"


def relative(value: float) -> str:
    """Write a relative error with two significant digits."""
    return "0" if value == 0 else f"{value:.1e}" if value < 0.01 or value >= 1000 else f"{value:.2g}"


def condition(value: float) -> str:
    """Write a condition number; an infinite one means a singular matrix, and says so."""
    return "singular" if value == math.inf else f"{value:.2e}"


def shape(extents: tuple[int, ...]) -> str:
    """Write a shape as `4096x11008`; a scalar's is `scalar`."""
    return "x".join(str(n) for n in extents) or "scalar"
