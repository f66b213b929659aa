"""Plots as plain data: what the page's script hands to Plotly.

A colour is a word ("accent", "muted", "line", "text") that the script replaces by the theme's colour,
so that one figure serves light and dark pages. Texts are escaped here: Plotly reads some HTML in every text.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fewbits.report import quantities as q
from fewbits.report.axes import Axis
from fewbits.report.judgement import pareto_front

Figure = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """One format in a scatter; a higher `quality` is better whatever the direction of `y`."""

    name: str
    x: float
    y: float
    low: float  # ends of the bar through the point
    high: float
    quality: float
    lines: tuple[str, ...]  # shown when pointed at, below the name


@dataclass(frozen=True)
class Curve:
    """One line through points, told from others by its colour and dashes: see `stroke`."""

    name: str
    points: tuple[tuple[float, float], ...]
    lines: tuple[str, ...]  # shown when a point is pointed at, below the name


@dataclass(frozen=True)
class Cells:
    """One layer of a heat map: QSNR in dB by row and column; None where nothing was measured."""

    title: str
    values: Sequence[Sequence[float | None]]


def plot_text(text: str) -> str:
    """Escape a text for Plotly, which obeys tags and hands what stands between dollar signs to MathJax."""
    return html.escape(q.visible(text), quote=False).replace("$", "&#36;")


def scatter(points: Sequence[Point], x: Axis, y: Axis, *, floor: float | None = None) -> Figure:
    """Draw quality against cost with the Pareto front.

    `floor` draws a line at that y. Points without a finite place are left out: the caller says so beside the
    plot.
    """
    drawn = [p for p in points if is_drawn(p)]
    front = pareto_front([(p.x, p.quality) for p in drawn])
    best = [drawn[i] for i in front]
    rest = [p for i, p in enumerate(drawn) if i not in front]
    data = [_front_line(best, x, y), _dots(rest, x, y, on_front=False), _dots(best, x, y, on_front=True)]
    labels = [
        {
            "x": x.place(p.x),
            "y": y.place(p.y),
            "text": plot_text(_shortened(p.name)),
            "front": i in front,
            "bar": [_placed(p.low, p.y, y), _placed(p.high, p.y, y)],
        }
        for i, p in enumerate(drawn)
    ]
    return {"data": data, "layout": plot_layout(x, y, _shapes(y, floor)), "labels": labels}


COLOURS = 7  # of curves, in the page's style
DASHES = ("", "8px,4px", "2px,3px", "10px,3px,2px,3px")


def stroke(number: int) -> tuple[str, str]:
    """Return the colour, as a word, and the dashes of a curve; those of the first 28 curves all differ."""
    return f"curve-{number % COLOURS}", DASHES[number // COLOURS % len(DASHES)]


def curves(drawn: Sequence[Curve], x: Axis, y: Axis, *, floor: float) -> Figure:
    """Draw lines through points, and one across the plot at `floor`; their names are for a legend."""
    data = []
    for number, curve in enumerate(drawn):
        color, dash = stroke(number)
        data.append(
            {
                "type": "scatter", "mode": "lines+markers",
                "x": [x.place(at) for at, _ in curve.points], "y": [y.place(v) for _, v in curve.points],
                "line": {"width": 2, "color": color, "dash": dash or "solid"},
                "marker": {"size": 6, "color": color},
                "hovertext": [_hover(curve.name, (line,)) for line in curve.lines], "hoverinfo": "text",
            }
        )  # fmt: skip
    return {"data": data, "layout": plot_layout(x, y, _shapes(y, floor)), "labels": []}


def strips(rows: Sequence[tuple[str, Sequence[float]]], x: Axis, unit: str) -> Figure:
    """Draw the values of each row as circles along a line, and their mean as a dot.

    Args:
        rows: name and values of each, from the top down.
        x: the axis of the values.
        unit: follows a value where it is pointed at.
    """
    names = [name for name, _ in rows]
    each = [(value, i) for i, (_, values) in enumerate(rows) for value in values if len(values) > 1]
    means = [(fmean(values), i) for i, (_, values) in enumerate(rows)]
    data = [
        {
            "type": "scatter", "mode": "markers",
            "x": [x.place(value) for value, _ in points], "y": [i for _, i in points],
            "marker": {
                "size": 10, "symbol": symbol, "color": color, "line": {"width": 2, "color": color},
            },
            "hovertext": [_hover(names[i], (f"{what}{value:.4g} {unit}",)) for value, i in points],
            "hoverinfo": "text",
        }
        for points, symbol, color, what in (
            (each, "circle-open", "muted", ""),
            (means, "circle", "accent", "mean " if each else ""),
        )
    ]  # fmt: skip
    layout = plot_layout(x, x, [])
    layout["height"] = 90 + 26 * len(rows)
    layout["yaxis"] = {
        **_labels([_shortened(name, 26) for name in names]),
        "range": [len(rows) - 0.5, -0.5], "showgrid": True, "gridcolor": "line",
    }  # fmt: skip
    return {"data": data, "layout": layout, "labels": []}


def plot_layout(x: Axis, y: Axis, shapes: list[Figure]) -> Figure:
    """Return the layout of a plot of points on two axes, with what is drawn behind them."""
    return {
        "height": 440,
        "margin": {"l": 12, "r": 16, "t": 8, "b": 12},
        "xaxis": plot_axis(x),
        "yaxis": plot_axis(y),
        "showlegend": False,
        "hovermode": "closest",
        "shapes": shapes,
    }


def is_drawn(point: Point) -> bool:
    """Whether a point has a place in a plot."""
    return math.isfinite(point.x) and math.isfinite(point.y)


def _front_line(best: Sequence[Point], x: Axis, y: Axis) -> Figure:
    return {
        "type": "scatter", "mode": "lines", "hoverinfo": "skip",
        "x": [x.place(p.x) for p in best], "y": [y.place(p.y) for p in best],
        # A step, not a slope: between two formats the better quality is not to be had for fewer bits.
        "line": {"shape": "hv", "width": 2, "color": "accent"},
    }  # fmt: skip


def _dots(points: Sequence[Point], x: Axis, y: Axis, *, on_front: bool) -> Figure:
    heights = [y.place(p.y) for p in points]
    above = [_placed(p.high, p.y, y) - h for p, h in zip(points, heights, strict=True)]
    below = [h - _placed(p.low, p.y, y) for p, h in zip(points, heights, strict=True)]
    color = "accent" if on_front else "muted"
    return {
        "type": "scatter", "mode": "markers",
        "x": [x.place(p.x) for p in points], "y": heights,
        "error_y": {
            "type": "data", "array": above, "arrayminus": below, "color": color, "thickness": 1.2, "width": 3,
        },
        "marker": {
            "size": 10, "symbol": "circle" if on_front else "circle-open", "color": color,
            "line": {"width": 2, "color": color},
        },
        "hovertext": [_hover(p.name, p.lines) for p in points], "hoverinfo": "text",
    }  # fmt: skip


def _placed(end: float, middle: float, y: Axis) -> float:
    """Place the end of a bar; an end that is not finite leaves that half of the bar out."""
    return y.place(end if math.isfinite(end) else middle)


def _hover(name: str, lines: Sequence[str]) -> str:
    return "<br>".join([f"<b>{plot_text(_shortened(name, 60))}</b>", *(plot_text(line) for line in lines)])


def _shortened(name: str, length: int = 28) -> str:
    name = q.visible(name)
    return name if len(name) <= length else f"{name[: length - 12]}…{name[-11:]}"


def plot_axis(axis: Axis) -> Figure:
    """Describe an axis to Plotly."""
    return {
        "title": {"text": axis.title, "standoff": 12}, "range": [axis.low, axis.high], "fixedrange": True,
        "tickvals": [axis.place(v) for v, _ in axis.ticks], "ticktext": [text for _, text in axis.ticks],
        "tickangle": 0, "ticklabeloverflow": "allow", "automargin": True,
        "zeroline": False, "gridcolor": "line", "linecolor": "line",
    }  # fmt: skip


def _shapes(y: Axis, floor: float | None) -> list[Figure]:
    if floor is None:
        return []
    at = {"y0": y.place(floor), "y1": y.place(floor)}
    across = {"xref": "paper", "x0": 0, "x1": 1, "layer": "below"}
    return [{"type": "line", **across, **at, "line": {"color": "text", "width": 1, "dash": "dot"}}]


def heat_map(rows: Sequence[str], columns: Sequence[str], layers: Sequence[Cells]) -> Figure:
    """Draw QSNR by row and format, one trace per layer of cells; the page shows one at a time.

    An infinite QSNR gets the colour of the largest finite one and the text "exact"; a NaN, no colour.
    """
    finite = [
        v for cells in layers for line in cells.values for v in line if v is not None and math.isfinite(v)
    ]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    return {
        "data": [_heat(rows, columns, cells, (low, high), visible=i == 0) for i, cells in enumerate(layers)],
        "layout": {
            "height": 150 + 24 * len(rows),
            "margin": {"l": 12, "r": 12, "t": 96, "b": 12},
            "xaxis": {**_labels([_shortened(c, 18) for c in columns]), "side": "top", "tickangle": -40},
            "yaxis": {**_labels([_shortened(row, 40) for row in rows]), "range": [len(rows) - 0.5, -0.5]},
            "coloraxis": {
                "colorscale": "Cividis", "cmin": low, "cmax": max(high, low + 1),
                "colorbar": {
                    "title": {"text": "QSNR, dB"}, "thickness": 12, "outlinewidth": 0,
                    "y": 1, "yanchor": "top", "lenmode": "pixels", "len": min(260, 70 + 24 * len(rows)),
                },
            },
        },
        "labels": [],
    }  # fmt: skip


def _labels(texts: Sequence[str]) -> Figure:
    # Places are numbers and names only label them: two names that shorten to the same text stay two rows.
    return {
        "tickvals": list(range(len(texts))), "ticktext": [plot_text(t) for t in texts], "automargin": True,
        "fixedrange": True, "showgrid": False, "zeroline": False, "ticks": "",
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
        return _hover(column, (row, said + unit))

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
