"""The catalogue and single formats as terminal text and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, log2

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

CatalogueRow = tuple[str, float, float, str, str]  # name, bits per value, largest element, summary, source

_HEIGHTS = " ▁▂▃▄▅▆▇█"
_ASCII_HEIGHTS = " .:-=+*#@"


def catalogue_table(rows: Sequence[CatalogueRow]) -> Table:
    """Return the catalogue as a table, in its own order."""
    table = Table(title="Formats", title_justify="left", show_edge=False, pad_edge=False)
    # Folded, not cut, where a terminal is narrow: half of a number is another one.
    table.add_column("format", overflow="fold")
    table.add_column("bits/value", justify="right", overflow="fold")
    table.add_column("largest element", justify="right", overflow="fold")
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


@dataclass(frozen=True)
class ValueTable:
    """Code and value of every code in hexadecimal order, as many to a line as fit; a dash is no number."""

    values: Sequence[float]
    bits: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("code value", style="table.title")
        digits, gap = -(-self.bits // 4), 2
        cells = [(f"{code:0{digits}X}", _value(value)) for code, value in enumerate(self.values)]
        count = min(8, len(cells))
        while True:
            rows = len(cells) // count
            columns = [cells[start : start + rows] for start in range(0, len(cells), rows)]
            widths = [max(len(code) + 1 + len(value) for code, value in column) for column in columns]
            if count == 1 or sum(widths) + gap * (count - 1) <= options.max_width:
                break
            count //= 2
        for row in zip(*columns, strict=True):
            line = Text(overflow="fold")
            for (code, value), width in zip(row, widths, strict=True):
                before = width - len(code) - 1 - len(value) + (gap if line else 0)
                line.append(" " * before).append(code, style="dim").append(f" {value}")
            yield line


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
