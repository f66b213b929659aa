"""A solved system as a page: its precisions, every stage, and the residuals on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fewbits.records import Provenance, SolveScore
from fewbits.report.axes import linear_axis, log10_axis
from fewbits.report.figures import Curve, Figure, curves
from fewbits.report.markup import commands, curve_legend, figure, glossary, page, paragraph, section, table
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
            f"Residual {first.measure} of every stage after each step; across: {goal:.1e}, which is asked"
            " for. Within GMRES it is the method's own estimate. Stages with the same residuals share a line."
        )
        drawn = _curves(tried)
        below = curve_legend([curve.name for curve in drawn])
        plot = _plot(drawn, goal)
        parts += section("Residuals", figure("residuals", plot, about=about, below=below))
    stages = table("Stages in the order tried", STAGE_COLUMNS, tried) + glossary(STAGE_COLUMNS)
    parts += section("Stages", paragraph("A stage that did not converge makes way for the next.") + stages)
    return page(
        "A linear system in narrow formats", f"{first.matrix}, {first.unknowns} unknowns", parts, provenance
    )


def _drawn(attempt: Attempt) -> list[tuple[int, float]]:
    """Return the residuals that have a place on a logarithmic axis, with their step."""
    return [(i, v) for i, v in enumerate(attempt.stage.history) if 0 < v < math.inf]


def _curves(tried: Sequence[Attempt]) -> list[Curve]:
    """Return a curve for each history, under the names of all stages that have it."""
    found: dict[tuple[tuple[int, float], ...], list[Attempt]] = {}
    for attempt in tried:
        if _drawn(attempt):
            found.setdefault(tuple(_drawn(attempt)), []).append(attempt)
    return [
        Curve(
            ", ".join(dict.fromkeys(_name(a) for a in alike)),
            points,
            tuple(f"step {i}, {v:.1e}" for i, v in points),
        )
        for points, alike in found.items()
    ]


def _name(attempt: Attempt) -> str:
    asked, stage = attempt.asked, attempt.stage
    name = stage.precision if stage.precision == asked else f"{stage.precision} of {asked}"
    return f"{name} (left)" if stage.reason else name


def _plot(drawn: Sequence[Curve], goal: float) -> Figure:
    x = linear_axis("steps and iterations", [0, 1, *(i for c in drawn for i, _ in c.points)])
    y = log10_axis("relative residual", [goal, *(v for c in drawn for _, v in c.points)])
    return curves(drawn, x, y, floor=goal)
