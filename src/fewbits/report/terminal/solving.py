"""A solved system in the terminal: the precisions, what was tried in each, and the residuals on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from fewbits.records import SolveScore
from fewbits.report.columns.solving import SCORE_COLUMNS, STAGE_COLUMNS, attempts
from fewbits.report.terminal.sheet import Heading, Sheet, Wrapped

_LONGEST_BAR = 48  # characters
_MOST_LINES = 24  # of a plot
_FLOOR = 1e-18  # below every residual that double precision leaves, but for zero


def solve_table(scores: Sequence[SolveScore]) -> RenderableType:
    """Lay out one row per precision."""
    heading = Heading(scores[0].matrix, f"{scores[0].unknowns} unknowns")
    return Group(Sheet(heading, SCORE_COLUMNS, scores), Text())


def stages_table(scores: Sequence[SolveScore]) -> RenderableType:
    """Lay out one row per attempt, and below them why each was left: a column of sentences has no room."""
    tried = attempts(scores)
    columns = [c for c in STAGE_COLUMNS if c.title != "left because"]
    left = [f"{a.asked}: {a.stage.precision} was left, {a.stage.reason}" for a in tried if a.stage.reason]
    sheet = Sheet(Heading("stages", "in the order tried"), columns, tried)
    return Group(sheet, *map(Wrapped, left))


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
