"""A solved system in the terminal: the precisions, what was tried in each, and the residuals on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from fewbits.records import SolveScore, Stage
from fewbits.report.columns import Column
from fewbits.report.table import Sheet, heading

_LONGEST_BAR = 48  # characters
_MOST_LINES = 24  # of a plot
_FLOOR = 1e-18  # below every residual that double precision leaves, but for zero


class Attempt(NamedTuple):
    """A stage, and the precision that was asked for."""

    asked: str
    stage: Stage


def _speed(score: SolveScore) -> str:
    return "-" if score.of_double is None else f"{score.of_double:.2f}"


def _steps(stage: Stage) -> str:
    return "-" if stage.code < 0 else str(stage.code)


def _path(score: SolveScore) -> str:
    return ", ".join(f"{s.precision}: {'left' if s.code < 0 else s.code}" for s in score.stages)


def _known(number: float) -> str:
    return f"{number:.1e}" if math.isfinite(number) else "-"


SCORE_COLUMNS: list[Column[SolveScore]] = [
    Column("precision", "precision", "Asked for.", lambda s: s.precision, lambda s: s.precision),
    Column("path", "path", "What was tried, with the steps of the one that converged.", _path,
           lambda s: len(s.path)),
    Column("backward error", "backward\nerror",
           "|b - A x| / (|A| |x| + |b|), infinity norms; of iterations |b - A x| / |b|.",
           lambda s: _known(s.backward_error), lambda s: s.backward_error),
    Column("condition", "condition", "Estimate, infinity norm, rows and columns equilibrated.",
           lambda s: "too large" if s.condition == math.inf else _known(s.condition), lambda s: s.condition),
    Column("seconds", "seconds", "Of the whole solution.", lambda s: f"{s.seconds:.3f}", lambda s: s.seconds),
    Column("speed", "times\nfp64", "Time of LAPACK in double precision over this one; measured by --compare.",
           _speed, lambda s: math.nan if s.of_double is None else s.of_double),
]  # fmt: skip

STAGE_COLUMNS: list[Column[Attempt]] = [
    Column("asked for", "asked for", "The precision asked for.", lambda a: a.asked, lambda a: a.asked),
    Column("stage", "stage", "The precision tried.",
           lambda a: a.stage.precision, lambda a: a.stage.precision),
    Column("method", "method", "The factorization.", lambda a: a.stage.method, lambda a: a.stage.method),
    Column("steps", "steps", "Steps of refinement, or iterations; none where it did not converge.",
           lambda a: _steps(a.stage), lambda a: math.nan if a.stage.code < 0 else a.stage.code),
    Column("GMRES", "GMRES", "Iterations of GMRES in those steps.",
           lambda a: str(a.stage.inner), lambda a: a.stage.inner),
    Column("factorize", "factorize\ns", "Seconds of the factorization, with the evidence gathered before it.",
           lambda a: f"{a.stage.factor_seconds:.3f}", lambda a: a.stage.factor_seconds),
    Column("refine", "refine\ns", "Seconds of everything after it.",
           lambda a: f"{a.stage.refine_seconds:.3f}", lambda a: a.stage.refine_seconds),
    Column("left because", "left because", "Why the next stage was taken.",
           lambda a: a.stage.reason or "solved", lambda a: a.stage.reason or "solved"),
]  # fmt: skip


def solve_table(scores: Sequence[SolveScore]) -> RenderableType:
    """Lay out one row per precision."""
    return Sheet(heading(scores[0].matrix, f"{scores[0].unknowns} unknowns"), SCORE_COLUMNS, list(scores))


def stages_table(scores: Sequence[SolveScore]) -> RenderableType:
    """Lay out one row per attempt, and below them why each was left: a column of sentences has no room."""
    tried = attempts(scores)
    columns = [c for c in STAGE_COLUMNS if c.title != "left because"]
    left = [f"{a.asked}: {a.stage.precision} was left, {a.stage.reason}" for a in tried if a.stage.reason]
    sheet = Sheet(heading("stages", "in the order tried"), columns, tried)
    return Group(sheet, *(Text(line) for line in left))


def attempts(scores: Sequence[SolveScore]) -> list[Attempt]:
    """Return every stage of every score, in order."""
    return [Attempt(score.precision, stage) for score in scores for stage in score.stages]


def history_plot(score: SolveScore) -> RenderableType:
    """Draw the residual after each step of each stage as a bar, on a logarithmic scale."""
    goal = score.goal
    lines = ["", f"residual {score.measure} by step, logarithmic; | is the {goal:.1e} asked for"]
    for stage in score.stages:
        every = -(-len(stage.history) // _MOST_LINES) or 1
        # Of a long history one in so many, counted from the last.
        shown = list(enumerate(stage.history))[::-1][::every][::-1]
        lines += [_bar(stage.precision if n == 0 else "", i, size, goal) for n, (i, size) in enumerate(shown)]
    return Text("\n".join(lines) + "\n")


def _bar(name: str, step: int, size: float, goal: float) -> str:
    length, mark = _length(size), _length(goal)
    bar = "#" * length + " " * (_LONGEST_BAR - length)
    return f"{name:>12} {step:>3} {size:8.1e} {bar[:mark]}|{bar[mark:]}".rstrip()


def _length(size: float) -> int:
    """Return the characters of a bar: none for `_FLOOR`, all for 1 and above, and for what is no number."""
    if not math.isfinite(size):
        return _LONGEST_BAR
    share = 1 - math.log(min(max(size, _FLOOR), 1.0)) / math.log(_FLOOR)
    return round(share * _LONGEST_BAR)
