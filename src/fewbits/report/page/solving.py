"""The page of a solved system: its precisions, every stage, and the residuals on the way."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from fewbits.records import Provenance, SolveScore, Stage
from fewbits.report.columns.solving import SCORE_COLUMNS, STAGE_COLUMNS, Attempt, attempts
from fewbits.report.page.axes import linear_axis, log_axis
from fewbits.report.page.figures import Bars, Curve, bars, curves
from fewbits.report.page.markup import (
    Block,
    Commands,
    Paragraph,
    Plot,
    Section,
    Sign,
    Table,
    curve_signs,
    page,
)


def solve_page(
    scores: Sequence[SolveScore], provenance: Provenance, *, base_command: str = "fewbits solve"
) -> str:
    """Write the page of a solved system.

    Args:
        scores: At least one, all of the same system.
        provenance: The command and versions that the foot of the page repeats.
        base_command: The command with the options that all rows share; a row adds its precision.

    Raises:
        MissingDependencyError: Plotly or Jinja2 is not installed.
    """
    tried, first = attempts(scores), scores[0]
    again = [(s.precision, f"{base_command} --precision {shlex.quote(s.precision)}") for s in scores]
    precisions: list[Block] = [
        _times_plot(scores),
        Table("Precisions", SCORE_COLUMNS, scores),
        Commands(again),
    ]
    parts = [Section("Precisions", precisions)]
    drawn = _curves(tried)
    if drawn:
        parts.append(Section("Residuals", [_residuals_plot(drawn, first)]))
    remark = Paragraph("A stage that did not converge makes way for the next.")
    parts.append(Section("Stages", [remark, Table("Stages in the order tried", STAGE_COLUMNS, tried)]))
    return page(
        "A linear system in narrow formats", f"{first.matrix}, {first.unknowns} unknowns", parts, provenance
    )


def _times_plot(scores: Sequence[SolveScore]) -> Plot:
    """Return the seconds of each precision, and what they went into."""
    solved = [[s for s in score.stages if s.code >= 0] for score in scores]
    left = [[s for s in score.stages if s.code < 0] for score in scores]
    parts = [
        Bars("stages that were left", [_seconds(s, "factor", "refine") for s in left], "muted"),
        Bars("factorization", [_seconds(s, "factor") for s in solved], "accent"),
        Bars("refinement or iterations", [_seconds(s, "refine") for s in solved], "curve-1"),
    ]
    names = [
        f"{s.precision}{'' if any(good) else ', not solved'}" for s, good in zip(scores, solved, strict=True)
    ]
    double = next((s.seconds for s in scores if s.precision == "fp64" and s.of_double is not None), None)
    about = "Seconds until the solution; short is good."
    about += " Dotted: LAPACK in double precision." if double is not None else ""
    legend = [Sign(part.title, part.color, "bar") for part in parts if any(part.values)]
    figure = bars(names, parts, linear_axis("s"), reference=double)
    return Plot("times", "Time of each precision", figure, about, legend)


def _seconds(stages: Sequence[Stage], *parts: str) -> float:
    return sum(
        {"factor": s.factor_seconds, "refine": s.refine_seconds}[part] for s in stages for part in parts
    )


def _residuals_plot(drawn: Sequence[Curve], score: SolveScore) -> Plot:
    about = (
        f"Residual {score.measure} of every stage after each step; dotted: {score.goal:.1e}, which is asked"
        " for. Within GMRES it is the method's own estimate. Stages with the same residuals share a line."
    )
    y = log_axis("residual", [score.goal, *(v for curve in drawn for _, v in curve.points)])
    figure = curves(drawn, linear_axis("steps and iterations"), y, reference=score.goal)
    names = [curve.name for curve in drawn]
    return Plot("residuals", "Residual after each step", figure, about, curve_signs(names))


def _points(attempt: Attempt) -> tuple[tuple[float, float], ...]:
    """Return the residuals that have a place on a logarithmic axis, with their step."""
    return tuple((i, v) for i, v in enumerate(attempt.stage.history) if 0 < v < math.inf)


def _curves(tried: Sequence[Attempt]) -> list[Curve]:
    """Return a curve for each history, under the names of all stages that have it."""
    alike: dict[tuple[tuple[float, float], ...], list[Attempt]] = {}
    for attempt in tried:
        if points := _points(attempt):
            alike.setdefault(points, []).append(attempt)
    return [
        Curve(
            ", ".join(dict.fromkeys(_name(attempt) for attempt in group)),
            points,
            tuple(f"step {i}, {v:.1e}" for i, v in points),
        )
        for points, group in alike.items()
    ]


def _name(attempt: Attempt) -> str:
    asked, stage = attempt.asked, attempt.stage
    name = stage.precision if stage.precision == asked else f"{stage.precision} of {asked}"
    return f"{name} (left)" if stage.reason else name
