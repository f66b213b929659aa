"""``fewbits formats``: the catalogue, or everything about one format."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from fewbits.cli.aliases import Formats
from fewbits.cli.arguments import JsonOption
from fewbits.cli.paths import tables_console, write_report
from fewbits.formats import CATALOGUE, Element, parse, values
from fewbits.report.terminal.formats import (
    ValueTable,
    catalogue_json,
    catalogue_table,
    format_json,
    number_lines,
)


def formats(
    name: Annotated[
        str | None, Formats(), typer.Argument(help="A format's name, or a text in the grammar.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """List the formats, or show one: its facts, its values, its number line and its source.

    Example: fewbits formats mxfp6_e2m3

    A new format: fewbits formats "float(e=3,m=4)"
    """
    console = tables_console(json)
    if name is None:
        rows = [
            (e.name, e.format.bits_per_value, e.format.element.max, e.summary, e.source)
            for e in CATALOGUE.values()
        ]
        console.print(catalogue_table(rows))
        text = catalogue_json(rows, {e.name: e.format.grammar for e in CATALOGUE.values()})
    else:
        fmt = parse(name)
        element, told = fmt.element, fmt.facts
        numbers = _numbers(element)
        for what, value in told:
            console.print(f"[bold]{what:<18}[/bold] ", end="")
            console.print(value, markup=False, highlight=False, soft_wrap=True)
        if element.bits <= 6:
            console.print(ValueTable(_produced(element).tolist(), element.bits))
        if numbers:
            label = f"element {element}" if element is not fmt else str(fmt)
            ascii_only = console.options.ascii_only
            lines = number_lines(numbers, min(console.width, 100), label, ascii_only=ascii_only)
            console.print(lines, markup=False, highlight=False)
        text = format_json(told, numbers if element.bits <= 8 else [])
    write_report(json, lambda: text)


def _numbers(element: Element) -> list[float]:
    """Return the finite values in rising order; none for formats too wide to enumerate."""
    if element.bits > 16:
        return []
    table = _produced(element)
    return [float(v) for v in np.unique(table[np.isfinite(table)])]


def _produced(element: Element) -> NDArray[np.float64]:
    """Return the value of every code; NaN for a code that rounding never gives, as -8 of a symmetric int4."""
    table = values(element)
    never = np.isfinite(table) & ((table < element.min) | (table > element.max))
    return np.where(never, np.nan, table)
