"""The catalogue and single formats as terminal text and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isnan, log2

from rich.table import Table

CatalogueRow = tuple[str, float, float, str, str]  # name, bits per value, largest element, summary, source

_HEIGHTS = " ▁▂▃▄▅▆▇█"
_ASCII_HEIGHTS = " .:-=+*#@"


def catalogue_table(rows: Sequence[CatalogueRow]) -> Table:
    """Return the catalogue as a table, in its own order."""
    table = Table(title="Formats", title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("format", no_wrap=True)
    table.add_column("bits/value", justify="right")
    table.add_column("largest element", justify="right", no_wrap=True)
    table.add_column("what it is", overflow="fold")
    for name, bits, largest, summary, _ in rows:
        table.add_row(name, f"{bits:.4g}", f"{largest:.6g}", summary)
    return table


def catalogue_json(rows: Sequence[CatalogueRow], grammar: Mapping[str, str]) -> str:
    """Return the catalogue as JSON, one object per format with its grammar and source."""
    keys = ("name", "bits_per_value", "largest_element", "summary", "source")
    objects = [dict(zip(keys, row, strict=True)) | {"grammar": grammar[row[0]]} for row in rows]
    return json.dumps(objects, indent=2) + "\n"


def format_json(facts: Sequence[tuple[str, str]], numbers: Sequence[float]) -> str:
    """Return one format's facts, and its values where they are few, as JSON."""
    return json.dumps({"facts": dict(facts), "values": list(numbers)}, indent=2) + "\n"


def value_table(values: Sequence[float], bits: int) -> Table:
    """Return code and value of every code in hexadecimal order, eight to a line; a dash is no number."""
    columns = 8 if len(values) >= 8 else len(values)
    table = Table(
        title="code value", title_justify="left", show_header=False, show_edge=False, pad_edge=False, box=None
    )
    for _ in range(columns):
        table.add_column(justify="right", no_wrap=True)
    rows = len(values) // columns
    width = -(-bits // 4)
    for row in range(rows):
        codes = [row + column * rows for column in range(columns)]
        table.add_row(*(f"[dim]{c:0{width}X}[/dim] {_value(values[c])}  " for c in codes))
    return table


def _value(value: float) -> str:
    return "-" if isnan(value) else f"{value:.6g}"


def number_lines(values: Sequence[float], width: int, label: str, *, ascii_only: bool = False) -> str:
    """Draw where the values lie: once linearly, once by the logarithm of the positive ones.

    Args:
        values: finite, rising.
        width: columns of the terminal.
        label: name of the format, for the first line.
        ascii_only: draw with characters of ASCII, since the terminal's encoding has no others for this.

    Returns:
        A few lines; a column is taller the more values fall into it.
    """
    positive, heights = [v for v in values if v > 0], _ASCII_HEIGHTS if ascii_only else _HEIGHTS
    lines = [f"number line of {label} ({len(values)} values)", _line(values, width, "{:.6g}", heights)]
    if len(positive) > 1 and positive[-1] / positive[0] > 16:
        lines += [
            "positive values, by binary logarithm",
            _line([log2(v) for v in positive], width, "2^{:.4g}", heights),
        ]
    return "\n".join(lines)


def _line(values: Sequence[float], width: int, shown: str, heights: str) -> str:
    low, high = values[0], values[-1]
    counts = [0] * width
    for value in values:
        counts[round((value - low) / (high - low) * (width - 1)) if high > low else 0] += 1
    tallest = max(counts)
    bars = "".join(heights[-(-8 * count // tallest)] for count in counts)
    left, right = shown.format(low), shown.format(high)
    middle = shown.format((low + high) / 2)
    gap = width - len(left) - len(right) - len(middle)
    if gap < 2:
        return f"{bars}\n{left}{right:>{max(width - len(left), len(right) + 1)}}"
    before = width // 2 - len(left) - len(middle) // 2
    return f"{bars}\n{left}{' ' * before}{middle}{right:>{width - len(left) - before - len(middle)}}"
