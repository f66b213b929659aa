"""Plots as plain data: what the page's script hands to Plotly.

A colour is a word ("accent", "muted", "line", "text") that the script replaces by the theme's colour,
so that one figure serves light and dark pages; "accent/33" is that colour with the opacity 0x33. Texts are
escaped here: Plotly reads some HTML in every text.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from fewbits.report import quantities as q
from fewbits.report.page.axes import Axis, Figure

_LABEL = 22  # characters in a line of a row's name: a third of a phone's width
_LINE = 16  # pixels of a line of text
COLOURS = 7  # of curves, in the page's style
DASHES = ("", "8px,4px", "2px,3px", "10px,3px,2px,3px")


@dataclass(frozen=True)
class Dot:
    """One value in a row."""

    row: int
    value: float
    hover: tuple[str, ...]  # shown when pointed at, below the name of the row
    low: float = math.nan  # ends of the bar through the dot; nan: none
    high: float = math.nan


@dataclass(frozen=True)
class Series:
    """Dots that look alike."""

    dots: Sequence[Dot]
    color: str = "accent"
    symbol: str = "circle"
    size: int = 10


@dataclass(frozen=True)
class Bars:
    """One part of the bar of each row."""

    title: str
    values: Sequence[float]
    color: str


@dataclass(frozen=True)
class Curve:
    """One line through points, told from others by its colour and dashes: see `stroke`."""

    name: str
    points: tuple[tuple[float, float], ...]
    hover: tuple[str, ...]  # shown when a point is pointed at, below the name
    band: tuple[tuple[float, float], ...] = ()  # lowest and highest value at each point
    alike: int | None = None  # curves of one number have one stroke; None: it has its own


@dataclass(frozen=True)
class Cells:
    """One layer of a heat map: QSNR in dB by row and column; None where nothing was measured."""

    title: str
    values: Sequence[Sequence[float | None]]


def plot_text(text: str) -> str:
    """Escape a text for Plotly, which obeys tags and hands what stands between dollar signs to MathJax."""
    return html.escape(q.visible(text), quote=False).replace("$", "&#36;")


def stroke(number: int) -> tuple[str, str]:
    """Return the colour, as a word, and the dashes of a curve; those of the first 28 curves all differ."""
    return f"curve-{number % COLOURS}", DASHES[number // COLOURS % len(DASHES)]


def dots(
    names: Sequence[str],
    series: Sequence[Series],
    axis: Axis,
    *,
    reference: float | None = None,
    front: Sequence[Dot] = (),
) -> Figure:
    """Draw a row for each name, from the top down, with dots along a horizontal axis.

    Args:
        names: Of the rows.
        series: Dots that look alike together; a dot without a finite value is left out.
        axis: Of the values.
        reference: Draws a dotted line from top to bottom at that value.
        front: Dots that a line of steps connects, from the top down.
    """
    rows = _Rows.of(names)
    data: list[Figure] = [_upright(rows, axis.place(reference))] if reference is not None else []
    data += [_steps(rows, front, axis)] if front else []
    data += [_dots(rows, names, alike, axis) for alike in series]
    return {"data": data, "layout": rows.layout(axis)}


def bars(
    names: Sequence[str], parts: Sequence[Bars], axis: Axis, *, reference: float | None = None
) -> Figure:
    """Draw a horizontal bar for each name, its parts one after the other.

    Args:
        names: Of the rows.
        parts: Each with a value for each row.
        axis: Of the values.
        reference: Draws a dotted line from top to bottom at that value.
    """
    rows = _Rows.of(names)
    data: list[Figure] = [
        {
            "type": "bar", "orientation": "h", "y": rows.places, "x": list(part.values), "width": 14,
            "marker": {"color": part.color},
            "hovertext": [
                hover_text(name, (f"{part.title}: {value:.3g} {axis.title}",))
                for name, value in zip(names, part.values, strict=True)
            ],
            "hoverinfo": "text",
        }
        for part in parts
    ]  # fmt: skip
    data += [_upright(rows, reference)] if reference is not None else []
    return {"data": data, "layout": {**rows.layout(axis), "barmode": "stack"}}


def curves(drawn: Sequence[Curve], x: Axis, y: Axis, *, reference: float | None = None) -> Figure:
    """Draw lines through points, and one across the plot at `reference`; their names are for a legend."""
    data: list[Figure] = []
    for number, curve in enumerate(drawn):
        color, dash = stroke(number if curve.alike is None else curve.alike)
        at = [x.place(at) for at, _ in curve.points]
        if curve.band:
            ends = [
                *(y.place(high) for _, high in curve.band),
                *(y.place(low) for low, _ in curve.band[::-1]),
            ]
            data.append({
                "type": "scatter", "mode": "lines", "x": [*at, *at[::-1]], "y": ends, "line": {"width": 0},
                "fill": "toself", "fillcolor": f"{color}/33", "hoverinfo": "skip",
            })  # fmt: skip
        data.append({
            "type": "scatter", "mode": "lines+markers",
            "x": at, "y": [y.place(v) for _, v in curve.points],
            "line": {"width": 2, "color": color, "dash": dash or "solid"},
            "marker": {"size": 6 if len(at) <= 30 else 1, "color": color},
            "hovertext": [hover_text(curve.name, (line,)) for line in curve.hover], "hoverinfo": "text",
        })  # fmt: skip
    ends = [x.place(at) for curve in drawn for at, _ in curve.points]
    if reference is not None and ends:
        across = [y.place(reference)] * 2
        data.append(_reference([min(ends), max(ends)], across))
    return {"data": data, "layout": plot_layout(plot_axis(x), plot_axis(y), 440)}


def heat_map(rows: Sequence[str], columns: Sequence[str], layers: Sequence[Cells]) -> Figure:
    """Draw QSNR by row and format, one trace per layer of cells; the page shows one at a time.

    An infinite QSNR gets the colour of the largest finite one and the text "exact"; a NaN, no colour.
    """
    finite = [
        v for cells in layers for line in cells.values for v in line if v is not None and math.isfinite(v)
    ]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    names = [_wrapped(row, 40) for row in rows]
    heads = [plot_text(q.shortened(column, 24, 1)[0]) for column in columns]
    height = 8 + _LINE * max((name.count("<br>") + 1 for name in names), default=1)
    layout = plot_layout(
        _labels(range(len(columns)), heads) | {"side": "top", "tickangle": -40},
        _labels(range(len(rows)), names) | {"range": [len(rows) - 0.5, -0.5]},
        150 + height * len(rows),
    )
    layout["margin"] = {"l": 12, "r": 12, "t": 96, "b": 12}
    layout["coloraxis"] = {
        "colorscale": "Cividis", "cmin": low, "cmax": max(high, low + 1),
        "colorbar": {
            "title": {"text": "QSNR, dB"}, "thickness": 12, "outlinewidth": 0,
            "y": 1, "yanchor": "top", "lenmode": "pixels", "len": min(260, 70 + height * len(rows)),
        },
    }  # fmt: skip
    data = [_heat(rows, columns, cells, (low, high), visible=i == 0) for i, cells in enumerate(layers)]
    return {"data": data, "layout": layout}


@dataclass(frozen=True)
class _Rows:
    """Rows one below the other, each as high as its name needs; a unit of the vertical axis is a pixel."""

    labels: list[str]
    places: list[float]  # of the middle of each row
    height: float

    @classmethod
    def of(cls, names: Sequence[str]) -> _Rows:
        labels = [_wrapped(name, _LABEL) for name in names]
        heights = [10 + _LINE * (label.count("<br>") + 1) for label in labels]
        ends = list(accumulate(heights))
        places = [end - height / 2 for end, height in zip(ends, heights, strict=True)]
        return cls(labels, places, ends[-1] if ends else 0.0)

    def layout(self, axis: Axis) -> Figure:
        y = _labels(self.places, self.labels) | {
            "range": [self.height, 0],
            "showgrid": True,
            "gridcolor": "line",
        }
        return plot_layout(plot_axis(axis), y, 70 + self.height)


def plot_layout(x: Figure, y: Figure, height: float) -> Figure:
    """Describe a plot of these axes to Plotly; its height is in pixels."""
    return {
        "height": height, "margin": {"l": 12, "r": 16, "t": 8, "b": 12}, "xaxis": x, "yaxis": y,
        "showlegend": False, "hovermode": "closest",
    }  # fmt: skip


def plot_axis(axis: Axis) -> Figure:
    """Describe an axis to Plotly, which chooses the ticks and makes room for their texts."""
    return {
        "title": {"text": plot_text(axis.title), "standoff": 12}, "fixedrange": True, "tickangle": 0,
        "ticklabeloverflow": "allow", "automargin": True, "zeroline": False, "gridcolor": "line",
        "linecolor": "line", **dict(axis.settings),
    }  # fmt: skip


def _labels(places: Sequence[float], texts: Sequence[str]) -> Figure:
    # Places are numbers and names only label them: two names that are shortened to one text stay two rows.
    return {
        "tickvals": list(places), "ticktext": list(texts), "automargin": True, "fixedrange": True,
        "showgrid": False, "zeroline": False,
        "ticks": "outside", "ticklen": 6, "tickcolor": "rgba(0,0,0,0)",  # room between name and plot
    }  # fmt: skip


def _wrapped(name: str, width: int) -> str:
    return "<br>".join(plot_text(line) for line in q.shortened(name, width, 3))


def hover_text(name: str, lines: Sequence[str]) -> str:
    """Return what is shown when a point is pointed at: its name, and lines below it."""
    return "<br>".join([f"<b>{_wrapped(name, 60)}</b>", *(plot_text(line) for line in lines)])


def _dots(rows: _Rows, names: Sequence[str], series: Series, axis: Axis) -> Figure:
    drawn = [dot for dot in series.dots if math.isfinite(dot.value)]
    values = [axis.place(dot.value) for dot in drawn]
    # The end of a bar that is not finite leaves that half of the bar out.
    above = [_placed(dot.high, dot.value, axis) - x for dot, x in zip(drawn, values, strict=True)]
    below = [x - _placed(dot.low, dot.value, axis) for dot, x in zip(drawn, values, strict=True)]
    trace: Figure = {
        "type": "scatter", "mode": "markers", "x": values, "y": [rows.places[dot.row] for dot in drawn],
        "marker": {
            "size": series.size, "symbol": series.symbol, "color": series.color,
            "line": {"width": 2, "color": series.color},
        },
        "hovertext": [hover_text(names[dot.row], dot.hover) for dot in drawn], "hoverinfo": "text",
    }  # fmt: skip
    if any(above) or any(below):
        trace["error_x"] = {
            "type": "data", "array": above, "arrayminus": below, "color": series.color, "thickness": 1.2,
            "width": 3,
        }  # fmt: skip
    return trace


def _placed(end: float, middle: float, axis: Axis) -> float:
    return axis.place(end if math.isfinite(end) else middle)


def _steps(rows: _Rows, front: Sequence[Dot], axis: Axis) -> Figure:
    return {
        "type": "scatter", "mode": "lines", "hoverinfo": "skip",
        "x": [axis.place(dot.value) for dot in front], "y": [rows.places[dot.row] for dot in front],
        # A step, not a slope: between two formats the better quality is not to be had for fewer bits.
        "line": {"shape": "vh", "width": 2, "color": "accent"},
    }  # fmt: skip


def _upright(rows: _Rows, place: float) -> Figure:
    return _reference([place, place], [0, rows.height])


def _reference(x: Sequence[float], y: Sequence[float]) -> Figure:
    # A trace, not a shape: Plotly fits the axes around traces only.
    return {
        "type": "scatter", "mode": "lines", "x": list(x), "y": list(y), "hoverinfo": "skip",
        "line": {"color": "text", "width": 1, "dash": "dot"},
    }  # fmt: skip


def _heat(
    rows: Sequence[str], columns: Sequence[str], cells: Cells, ends: tuple[float, float], *, visible: bool
) -> Figure:
    low, high = ends

    def text(value: float | None) -> str:
        return "" if value is None or math.isnan(value) else "exact" if value == math.inf else f"{value:.0f}"

    def hover(row: str, column: str, value: float | None) -> str:
        said = "not measured" if value is None else f"{cells.title} QSNR: {q.decibels(value)}"
        unit = " dB" if value is not None and math.isfinite(value) else ""
        return hover_text(column, (row, said + unit))

    def level(value: float | None) -> float | None:
        return None if value is None or math.isnan(value) else min(max(value, low), high)

    return {
        "type": "heatmap", "name": cells.title, "visible": visible, "coloraxis": "coloraxis",
        "xgap": 1, "ygap": 1,
        "z": [[level(v) for v in line] for line in cells.values],
        "text": [[text(v) for v in line] for line in cells.values], "texttemplate": "%{text}",
        "textfont": {"size": 11},
        "hovertext": [
            [hover(row, c, v) for c, v in zip(columns, line, strict=True)]
            for row, line in zip(rows, cells.values, strict=True)
        ],
        "hoverinfo": "text",
    }  # fmt: skip
