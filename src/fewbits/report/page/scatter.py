"""Points in a plane, of which a reader shows some and hides others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fewbits.report.page.axes import Axis, Figure
from fewbits.report.page.figures import hover_text, plot_axis, plot_layout


@dataclass(frozen=True)
class Point:
    """One point and what it belongs to."""

    name: str
    x: float
    y: float
    hover: tuple[str, ...]  # shown when pointed at, below the name
    facets: tuple[int, ...] = ()  # for each filter the number of its choice; (): never hidden


@dataclass(frozen=True)
class Cloud:
    """Points that look alike."""

    points: Sequence[Point]
    color: str
    symbol: str = "circle"
    size: int = 5


def scatter(
    clouds: Sequence[Cloud],
    front: Sequence[tuple[float, float]],
    marked: Cloud,
    x: Axis,
    y: Axis,
    *,
    height: int = 520,
) -> Figure:
    """Draw clouds of points, a line of steps through the front of those that are shown, and marked points.

    Args:
        clouds: with finite coordinates, the last on top.
        front: from left to right; the page's script draws it anew when filters hide points with facets.
        marked: points on top of all, with finite coordinates.
        x: the cost.
        y: the quality.
        height: in pixels.
    """
    data: list[Figure] = [_cloud(cloud, x, y) for cloud in clouds]
    data.append({
        "type": "scatter", "mode": "lines", "hoverinfo": "skip", "isFront": True,
        "x": [x.place(a) for a, _ in front], "y": [y.place(b) for _, b in front],
        # A step, not a slope: between two formats the better quality is not to be had for less.
        "line": {"shape": "hv", "width": 2, "color": "accent"},
    })  # fmt: skip
    data.append(_cloud(marked, x, y))
    return {"data": data, "layout": plot_layout(plot_axis(x), plot_axis(y), height)}


def _cloud(cloud: Cloud, x: Axis, y: Axis) -> Figure:
    points = cloud.points
    trace: Figure = {
        "type": "scatter", "mode": "markers",
        "x": [x.place(p.x) for p in points], "y": [y.place(p.y) for p in points],
        "marker": {"size": cloud.size, "symbol": cloud.symbol, "color": cloud.color, "line": {"width": 0}},
        "hovertext": [hover_text(p.name, p.hover) for p in points], "hoverinfo": "text",
    }  # fmt: skip
    if any(p.facets for p in points):
        trace["facets"] = [list(p.facets) for p in points]
    return trace
