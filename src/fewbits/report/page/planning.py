"""The page of a plan: the network drawn, each layer in the colour of its split, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence

from fewbits.records import PlanRecord, Provenance
from fewbits.report.columns.planning import (
    PLAN_COLUMNS,
    STRATEGY_COLUMNS,
    about_plan,
    kinds,
    plan_ms,
    plan_rows,
    split_text,
    strategy_rows,
)
from fewbits.report.page.axes import Figure, linear_axis
from fewbits.report.page.figures import COLOURS, Bars, bars, plot_text
from fewbits.report.page.markup import Block, Paragraph, Plot, Section, Sign, Table, page

_STEP = 18  # pixels from a layer to the next one below
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross")


def plan_page(plan: PlanRecord, provenance: Provenance) -> str:
    """Write the page of a plan.

    Args:
        plan: What is shown.
        provenance: The command and versions that the foot of the page repeats.

    Raises:
        MissingDependencyError: Plotly or Jinja2 is not installed.
    """
    blocks: list[Block] = [Paragraph(line) for line in about_plan(plan)]
    if plan.strategies:
        blocks.append(Table("Strategies", STRATEGY_COLUMNS, strategy_rows(plan)))
    blocks += [_breakdown(plan), _network(plan), Table("Layers", PLAN_COLUMNS, plan_rows(plan))]
    lead = "A prediction from a model of costs: nothing here was run."
    return page("A plan for many devices", lead, [Section(plan.network, blocks)], provenance)


def _breakdown(plan: PlanRecord) -> Plot:
    rows = plan_rows(plan)
    names = kinds(plan.layers)

    def of(kind: str, part: str) -> float:
        chosen = [r for r in rows if r.layer.kind == kind]
        if part == "inputs":
            return 1e3 * sum(r.moved_seconds for r in chosen)
        return 1e3 * sum(
            r.layer.compute_seconds if part == "compute" else r.layer.link_seconds for r in chosen
        )

    colors = {"compute": "curve-0", "sums": "curve-1", "inputs": "curve-3"}
    parts = [Bars(part, [of(kind, part) for kind in names], color) for part, color in colors.items()]
    signs = [Sign(part, color, "bar") for part, color in colors.items()]
    about = "Milliseconds of a step by kind of layer: compute, sums over devices, and moving inputs."
    return Plot("breakdown", "Where the time goes", bars(names, parts, linear_axis("ms")), about, signs)


def _network(plan: PlanRecord) -> Plot:
    """Draw layers from the top down, those that do not wait for each other side by side."""
    ways = list(dict.fromkeys(_way(plan, i) for i in range(len(plan.layers))))
    depths, lanes = _places(plan)
    data: list[Figure] = [_lines(plan, depths, lanes)]
    for number, way in enumerate(ways):
        at = [i for i in range(len(plan.layers)) if _way(plan, i) == way]
        data.append({
            "type": "scatter", "mode": "markers", "x": [lanes[i] for i in at], "y": [depths[i] for i in at],
            "marker": {
                "size": 11, "color": f"curve-{number % COLOURS}",
                "symbol": _SYMBOLS[number // COLOURS % len(_SYMBOLS)],
            },
            "hovertext": [_hover(plan, i) for i in at], "hoverinfo": "text",
        })  # fmt: skip
    axis: Figure = {"visible": False, "fixedrange": True}
    layout: Figure = {
        "height": 60 + _STEP * (max(depths, default=0) + 1), "showlegend": False, "hovermode": "closest",
        "margin": {"l": 12, "r": 16, "t": 8, "b": 12},
        "xaxis": axis, "yaxis": {**axis, "range": [max(depths, default=0) + 0.5, -0.5]},
    }  # fmt: skip
    signs = [
        Sign(way, f"curve-{i % COLOURS}", "diamond" if i // COLOURS % len(_SYMBOLS) == 1 else "dot")
        for i, way in enumerate(ways)
    ]
    about = "Each mark is a layer, in the colour of the dimensions that it splits; data flows down."
    return Plot("network", "The network", {"data": data, "layout": layout}, about, signs)


def _way(plan: PlanRecord, i: int) -> str:
    """Return which dimensions of a layer are split."""
    layer = plan.layers[i]
    split = [name for name, n in zip(layer.dimensions, layer.split, strict=True) if n > 1]
    return f"splits {', '.join(split)}" if split else "whole"


def _places(plan: PlanRecord) -> tuple[list[int], list[float]]:
    """Return how far down each layer stands, after all that it waits for, and where in its row."""
    depths = [0] * len(plan.layers)
    for edge in plan.edges:  # a producer stands before its consumers
        depths[edge.consumer] = max(depths[edge.consumer], depths[edge.producer] + 1)
    for edge in sorted(plan.edges, key=lambda e: e.consumer):
        depths[edge.consumer] = max(depths[edge.consumer], depths[edge.producer] + 1)
    rows: dict[int, list[int]] = {}
    for i, depth in enumerate(depths):
        rows.setdefault(depth, []).append(i)
    lanes = [0.0] * len(depths)
    for row in rows.values():
        for k, i in enumerate(row):
            lanes[i] = k - (len(row) - 1) / 2
    return depths, lanes


def _lines(plan: PlanRecord, depths: Sequence[int], lanes: Sequence[float]) -> Figure:
    x: list[float | None] = []
    y: list[float | None] = []
    for edge in plan.edges:
        x += [lanes[edge.producer], lanes[edge.consumer], None]
        y += [depths[edge.producer], depths[edge.consumer], None]
    return {
        "type": "scatter", "mode": "lines", "x": x, "y": y, "hoverinfo": "skip",
        "line": {"color": "line", "width": 1.5},
    }  # fmt: skip


def _hover(plan: PlanRecord, i: int) -> str:
    layer = plan.layers[i]
    recipe = f", {layer.format}" if layer.format else ""
    lines = [
        f"{layer.kind}{recipe}: {split_text(layer)}",
        f"compute {plan_ms(layer.compute_seconds)} ms, sums {plan_ms(layer.link_seconds)} ms",
    ]
    return "<br>".join([f"<b>{plot_text(layer.name)}</b>", *map(plot_text, lines)])
