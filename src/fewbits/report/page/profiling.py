"""The page of profiles: a donut by class, a roofline, a flame view, and every row."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from fewbits.records import Provenance, StepProfile
from fewbits.records.profiling import CLASSES, REST
from fewbits.report.columns.profiling import (
    LAYER_COLUMNS,
    OPERATION_COLUMNS,
    OperationRow,
    about_profile,
    class_columns,
    class_rows,
    layer_rows,
    operation_rows,
    profile_name,
)
from fewbits.report.page.axes import Figure, log_axis
from fewbits.report.page.figures import plot_axis, plot_text
from fewbits.report.page.markup import Block, Paragraph, Plot, Section, Sign, Table, page

_COLORS = {kind: f"curve-{i}" for i, kind in enumerate((*CLASSES, REST))}


def profile_page(profiles: Sequence[StepProfile], provenance: Provenance) -> str:
    """Write the page of one profile, or of some beside each other.

    Args:
        profiles: At least one.
        provenance: The command and versions that the foot of the page repeats.

    Raises:
        MissingDependencyError: Plotly or Jinja2 is not installed.
    """
    sections = []
    if len(profiles) > 1:
        table = Table("Time by class", class_columns(profiles), class_rows(profiles), ())
        sections.append(Section("Beside each other", [table]))
    sections += [Section(profile_name(p), _blocks(p, i)) for i, p in enumerate(profiles)]
    lead = "Measured on this machine, under PyTorch's profiler."
    return page("Where a training step's time goes", lead, sections, provenance)


def _blocks(profile: StepProfile, number: int) -> list[Block]:
    rows = operation_rows(profile)
    return [
        *(Paragraph(line) for line in about_profile(profile)),
        _donut(profile, number),
        Table("Time by class", class_columns([profile]), class_rows([profile])),
        _roofline(profile, rows, number),
        _flame(profile, number),
        Table("Layers", LAYER_COLUMNS, layer_rows(profile)),
        Table("Operations", OPERATION_COLUMNS, rows),
    ]


def _donut(profile: StepProfile, number: int) -> Plot:
    rows = [row for row in class_rows([profile]) if row.seconds[0]]
    data: list[Figure] = [{
        "type": "pie", "hole": 0.55, "sort": False, "direction": "clockwise", "textinfo": "percent",
        "labels": [row.kind for row in rows], "values": [1e3 * row.seconds[0] for row in rows],
        "marker": {"colors": [_COLORS[row.kind] for row in rows], "line": {"width": 1, "color": "page"}},
        "hovertext": [f"<b>{row.kind}</b><br>{1e3 * row.seconds[0]:.3g} ms" for row in rows],
        "hoverinfo": "text", "textposition": "outside",
    }]  # fmt: skip
    layout: Figure = {
        "height": 340, "showlegend": False, "margin": {"l": 40, "r": 40, "t": 40, "b": 40},
        "annotations": [{
            "text": f"{1e3 * profile.seconds:.3g} ms", "showarrow": False, "font": {"size": 18}, "x": 0.5,
            "y": 0.5,
        }],
    }  # fmt: skip
    signs = [Sign(row.kind, _COLORS[row.kind], "bar") for row in rows]
    about = "The share of each class in a step. Rounding is a class of its own, wherever it happens."
    return Plot(f"donut-{number}", "Time by class", {"data": data, "layout": layout}, about, signs)


def _roofline(profile: StepProfile, rows: Sequence[OperationRow], number: int) -> Plot:
    """Draw what operations reach by how much they compute with each byte, below the roofs of the machine."""
    drawn = [r for r in rows if r.moved_bytes and r.flops and r.seconds]
    limits = profile.limits
    xs = [r.flops / r.moved_bytes for r in drawn]
    low, high = min([0.05, *xs]) / 2, max([100.0, *xs]) * 2
    data: list[Figure] = []
    rates = sorted(limits.product_flops.items(), key=lambda pair: pair[1])
    for name, rate in rates:
        knee = min(max(rate / limits.copy_bytes, low), high)
        data.append({
            "type": "scatter", "mode": "lines", "x": [low, knee, high],
            "y": [1e-9 * low * limits.copy_bytes, 1e-9 * min(rate, knee * limits.copy_bytes), 1e-9 * rate],
            "line": {"width": 1.5, "color": "text", "dash": "solid" if name == "float32" else "dot"},
            "hovertext": [plot_text(f"the limit of {name}")] * 3, "hoverinfo": "text",
        })  # fmt: skip
    fastest = rates[-1][1] if rates else 0.0
    knee = min(max(fastest / limits.read_bytes, low), high)
    data.append({
        "type": "scatter", "mode": "lines", "x": [low, knee],
        "y": [1e-9 * x * limits.read_bytes for x in (low, knee)],
        "line": {"width": 1.5, "color": "text", "dash": "dash"},
        "hovertext": [plot_text("the limit of reads")] * 2, "hoverinfo": "text",
    })  # fmt: skip
    for kind in dict.fromkeys(r.kind for r in drawn):
        alike = [r for r in drawn if r.kind == kind]
        data.append({
            "type": "scatter", "mode": "markers", "x": [r.flops / r.moved_bytes for r in alike],
            "y": [1e-9 * r.flops / r.seconds for r in alike],
            "marker": {
                "color": _COLORS[kind], "size": [7 + 40 * r.share**0.5 for r in alike], "opacity": 0.75,
            },
            "hovertext": [_about_row(r) for r in alike], "hoverinfo": "text",
        })  # fmt: skip
    ys = [1e-9 * r.flops / r.seconds for r in drawn]
    x, y = (
        log_axis("operations for each byte", [low, high]),
        log_axis("GFLOP/s", [*ys, *(1e-9 * r for _, r in rates)]),
    )
    layout: Figure = {
        "height": 460, "margin": {"l": 12, "r": 16, "t": 8, "b": 12}, "xaxis": plot_axis(x),
        "yaxis": plot_axis(y), "showlegend": False, "hovermode": "closest",
    }  # fmt: skip
    signs = [Sign(kind, _COLORS[kind]) for kind in dict.fromkeys(r.kind for r in drawn)]
    signs += [
        Sign(f"limit: {name}", "text", "line", "" if name == "float32" else "2px,3px") for name, _ in rates
    ]
    signs.append(Sign("limit: reads", "text", "line", "6px,4px"))
    about = (
        "Each mark is an operation of a class, the larger the more time it takes. The line is what this"
        " machine can do: at the left the rate of copies, or of reads for what writes little, at the right"
        " that of products. Marks above it work in a cache, or the limit is too low; far below it time is"
        " lost."
    )
    return Plot(f"roofline-{number}", "Roofline", {"data": data, "layout": layout}, about, signs)


def _about_row(row: OperationRow) -> str:
    part = "" if isnan(row.fraction) else f", {100 * row.fraction:.0f} % of the limit ({row.bound})"
    text = f"{row.kind}: {row.calls} calls, {1e3 * row.seconds:.3g} ms{part}"
    return f"<b>{plot_text(row.label)}</b><br>{plot_text(text)}"


def _flame(profile: StepProfile, number: int) -> Plot:
    """Draw what ran inside of what, as wide as it took long."""
    nodes = profile.flame
    data: list[Figure] = [{
        "type": "icicle", "branchvalues": "total", "sort": False, "tiling": {"orientation": "v", "flip": "y"},
        "ids": ["step", *(str(i) for i in range(len(nodes)))],
        "labels": ["step", *(plot_text(node.name) for node in nodes)],
        "parents": ["", *("step" if node.parent < 0 else str(node.parent) for node in nodes)],
        # Whole nanoseconds: of numbers that are rounded the parts may be more than all of them.
        "values": [round(1e9 * profile.seconds), *(round(1e9 * node.seconds) for node in nodes)],
        "marker": {
            "colors": ["panel", *(_COLORS[node.kind] for node in nodes)],
            "line": {"width": 1, "color": "page"},
        },
        "hovertext": [
            f"<b>step</b><br>{1e3 * profile.seconds:.3g} ms",
            *(f"<b>{plot_text(n.name)}</b><br>{n.kind}: {1e3 * n.seconds:.3g} ms" for n in nodes),
        ],
        "hoverinfo": "text", "textposition": "middle center", "pathbar": {"visible": False},
    }]  # fmt: skip
    layout: Figure = {"height": 480, "margin": {"l": 0, "r": 0, "t": 8, "b": 8}}
    about = (
        "What ran inside of what, each as wide as it took long; what takes less than a thousandth is left"
        " out. Choose a part to see it alone, and the one above it to go back."
    )
    signs = [Sign(kind, _COLORS[kind], "bar") for kind in dict.fromkeys(n.kind for n in nodes)]
    return Plot(f"flame-{number}", "Flame view", {"data": data, "layout": layout}, about, signs)
