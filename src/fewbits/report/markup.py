"""The parts of a page: tables, figures and the document around them, every text escaped."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import TypeVar

from fewbits.errors import MissingDependencyError
from fewbits.records import Provenance
from fewbits.report.columns import Column
from fewbits.report.figures import Figure, stroke
from fewbits.report.quantities import visible

Row = TypeVar("Row")

_LONGEST_WORD = 30  # characters; a longer one is broken

# The page may run its inline script and style and draw its own images; the browser refuses everything else.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)


def escape(text: str) -> str:
    """Escape a text for HTML, in content and in attributes."""
    return html.escape(visible(text), quote=True)


def paragraph(text: str, name: str = "") -> str:
    """Write a paragraph of plain text; "" writes none."""
    return f'<p class="{name}">{escape(text)}</p>' if text else ""


def section(title: str, body: str) -> str:
    """Put a part of the page under its heading; `body` is markup."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>\n"


def figure(identity: str, data: Figure, *, about: str, above: str = "", below: str = "") -> str:
    """Write the place of a plot and its data, with the markup `above` on top of it and `below` under it.

    `identity` is the element's id: given, not drawn at random, so that the same records give the same page.
    """
    inside = json.dumps(data, allow_nan=False, separators=(",", ":"))
    # Inside a script element only "<" can end it or open a comment; JSON reads the escape as the same.
    inside = inside.replace("<", "\\u003c")
    return (
        f'<figure>{above}<div class="scroll">'
        f'<div class="plot" id="{identity}" role="img" aria-label="{escape(about)}"></div></div>'
        f'<script type="application/json" data-figure="{identity}">{inside}</script>{below}'
        f"<figcaption>{escape(about)}</figcaption></figure>"
    )


def curve_legend(names: Sequence[str]) -> str:
    """Write which line is whose: a piece of each, with its name."""
    items = ""
    for number, name in enumerate(names):
        color, dash = stroke(number)
        style = f"stroke: var(--{color}); stroke-dasharray: {dash.replace('px', '') or 'none'}"
        line = f'<line x2="36" y1="5" y2="5" style="{style}"/>'
        items += f'<li><svg width="36" height="10" aria-hidden="true">{line}</svg>'
        items += f"<span>{_breakable(name)}</span></li>"
    return f'<ul class="curves">{items}</ul>'


def chooser(identity: str, choices: Sequence[str]) -> str:
    """Write the buttons that choose which layer of the heat map `identity` is shown."""
    buttons = "".join(
        f'<label><input type="radio" name="{identity}-layer" value="{i}"{" checked" if i == 0 else ""}>'
        f"<span>{escape(choice)}</span></label>"
        for i, choice in enumerate(choices)
    )
    return f'<fieldset class="choice" data-for="{identity}"><legend>Show</legend>{buttons}</fieldset>'


def legend() -> str:
    """Write what the signs of a scatter mean."""
    signs = (
        ("front", "on the Pareto front: nothing with fewer bits is as good"),
        ("beaten", "another format is better with no more bits"),
    )
    return (
        '<p class="legend">' + "".join(f'<span class="{name}">{text}</span>' for name, text in signs) + "</p>"
    )


def commands(lines: Sequence[tuple[str, str]]) -> str:
    """Write the command line that measures each row of a table again, as (row, command)."""
    items = "".join(f"<dt>{escape(row)}</dt><dd><code>{escape(line)}</code></dd>" for row, line in lines)
    return f"<details><summary>The command line of every row</summary><dl>{items}</dl></details>"


def glossary(columns: Sequence[Column[Row]]) -> str:
    """Write what each column means, for those who cannot point at a header."""
    items = "".join(f"<dt>{escape(column.title)}</dt><dd>{escape(column.about)}</dd>" for column in columns)
    return f"<details><summary>What the columns mean</summary><dl>{items}</dl></details>"


def table(caption: str, columns: Sequence[Column[Row]], rows: Sequence[Row]) -> str:
    """Write a table whose headers sort it."""
    heads = [_head(c.title, c.about, numeric=not rows or _is_number(c.order(rows[0]))) for c in columns]
    body = "".join(_row(columns, row) for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f'<table class="sortable">'
        f"<caption>{escape(caption)}</caption><thead><tr>{''.join(heads)}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _is_number(value: float | str) -> bool:
    return not isinstance(value, str)


def _head(title: str, about: str, *, numeric: bool) -> str:
    kind = "number" if numeric else "text"
    button = f'<button type="button" title="{escape(about)}">{escape(title)}</button>'
    return f'<th scope="col" class="{kind}" aria-sort="none">{button}</th>'


def _row(columns: Sequence[Column[Row]], row: Row) -> str:
    return f"<tr>{''.join(_cell(column, row, first=i == 0) for i, column in enumerate(columns))}</tr>"


def _cell(column: Column[Row], row: Row, *, first: bool) -> str:
    order, mark = column.order(row), column.mark(row)
    if isinstance(order, str):
        kind, value = "text long" if len(order) > (40 if first else 30) else "text", escape(order)
    else:
        # A script reads "Infinity" as a number and Python's "inf" not.
        kind, value = "number", "" if math.isnan(order) else repr(float(order)).replace("inf", "Infinity")
    sign = f' <span class="mark">{ {"worse": "▼", "better": "▲"}[mark] } {mark}</span>' if mark else ""
    tag = 'th scope="row"' if first else "td"
    title = "" if first else f' data-title="{escape(column.title)}"'
    shown = _breakable(column.text(row)) if isinstance(order, str) else escape(column.text(row))
    text = f'<{tag} class="{kind} {mark}" data-value="{value}"{title}><span>{shown}{sign}</span>'
    return f"{text}</{'th' if first else 'td'}>"


def _breakable(name: str) -> str:
    """Escape a text that may be broken where its words end, and within a word where that is monstrous."""
    pieces = re.findall(rf"[^._/,:]{{1,{_LONGEST_WORD}}}[._/,:]*|[._/,:]+", visible(name))
    return "<wbr>".join(html.escape(piece, quote=True) for piece in pieces)


def page(title: str, lead: str, body: str, provenance: Provenance) -> str:
    """Write the whole document: one file with its style and scripts, which asks nothing of any network.

    Raises:
        MissingDependencyError: Plotly, whose script draws the plots, is not installed.
    """
    plotly = plotly_script()
    folder = files("fewbits.report") / "page"
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<header><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p></header>\n'
        f"<main>\n{body}</main>\n{_footer(provenance)}"
        f"<script>\n{plotly}\n</script>\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def _footer(provenance: Provenance) -> str:
    versions = "".join(f"<li>{escape(name)} {escape(version)}</li>" for name, version in provenance.versions)
    seeds = f"<p>Seeds: {', '.join(map(str, provenance.seeds))}.</p>" if provenance.seeds else ""
    return (
        "<footer><h2>Measure it again</h2><p>This page comes from</p>"
        f'<pre tabindex="0"><code>{escape(provenance.command)}</code></pre>{seeds}'
        f'<ul class="versions" aria-label="Versions">{versions}</ul></footer>\n'
    )


def plotly_script() -> str:
    """Read the script that draws the plots, some five megabytes, from the Plotly that is installed.

    Raises:
        MissingDependencyError: Plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingDependencyError(
            "an HTML report was asked for, and Plotly, which draws its plots, is not installed: "
            "run pip install 'fewbits[plots]'"
        ) from error
    return str(get_plotlyjs())
