"""A solved system as a page: its precisions, every stage, and the residuals on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fewbits.records import Provenance, SolveScore
from fewbits.report.axes import linear_axis, log10_axis
from fewbits.report.figures import Figure, plot_layout, plot_text
from fewbits.report.markup import commands, figure, glossary, page, paragraph, section, table
from fewbits.report.solving import SCORE_COLUMNS, STAGE_COLUMNS, Attempt, attempts


def solve_page(
    scores: Sequence[SolveScore], provenance: Provenance, *, base_command: str = "fewbits solve"
) -> str:
    """Write the page of a solved system.

    Args:
        scores: At least one, all of the same system.
        provenance: The command and versions that the foot of the page repeats.
        base_command: The command with the options that all rows share; a row adds its precision.

    Raises:
        MissingDependencyError: Plotly is not installed.
    """
    tried = attempts(scores)
    first = scores[0]
    body = table("Precisions", SCORE_COLUMNS, scores) + glossary(SCORE_COLUMNS)
    body += commands([(s.precision, f"{base_command} --precision {s.precision}") for s in scores])
    parts = section("Precisions", body)
    if any(_drawn(a) for a in tried):
        goal = first.goal
        about = (
            f"Residual {first.measure} of every stage after each step; dotted: {goal:.1e}, which is"
            " asked for. Within GMRES it is the method's own estimate."
        )
        parts += section("Residuals", figure("residuals", _curves(tried, goal), about=about))
    stages = table("Stages in the order tried", STAGE_COLUMNS, tried) + glossary(STAGE_COLUMNS)
    parts += section("Stages", paragraph("A stage that did not converge makes way for the next.") + stages)
    return page(
        "A linear system in narrow formats", f"{first.matrix}, {first.unknowns} unknowns", parts, provenance
    )


def _drawn(attempt: Attempt) -> list[tuple[int, float]]:
    """Return the residuals that have a place on a logarithmic axis, with their step."""
    return [(i, v) for i, v in enumerate(attempt.stage.history) if 0 < v < math.inf]


def _curves(tried: Sequence[Attempt], goal: float) -> Figure:
    drawn = [(a, _drawn(a)) for a in tried if _drawn(a)]
    x = linear_axis("steps and iterations", [0, 1, *(i for _, points in drawn for i, _ in points)])
    y = log10_axis("relative residual", [goal, *(v for _, points in drawn for _, v in points)])
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y.place(goal), "y1": y.place(goal)}
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": [x.place(i) for i, _ in points],
                "y": [y.place(v) for _, v in points],
                "line": {"width": 2, "color": "muted" if a.stage.reason else "accent"},
                "marker": {"size": 6, "color": "muted" if a.stage.reason else "accent"},
                "hovertext": [
                    plot_text(f"{a.asked}: {a.stage.precision}, step {i}, {v:.1e}") for i, v in points
                ],
                "hoverinfo": "text",
            }
            for a, points in drawn
        ],
        "layout": plot_layout(x, y, [{**line, "line": {"color": "text", "width": 1, "dash": "dot"}}]),
        "labels": [_label(a, x.place(points[-1][0]), y.place(points[-1][1])) for a, points in drawn],
    }


def _label(attempt: Attempt, x: float, y: float) -> Figure:
    """Name a curve at its end."""
    name = plot_text(attempt.stage.precision)
    return {"x": x, "y": y, "text": name, "front": not attempt.stage.reason, "bar": [y, y]}
