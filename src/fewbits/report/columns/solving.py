"""The columns about a solved system: its precisions, and what was tried in each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fewbits.records import SolveScore, Stage
from fewbits.report.columns.column import Column


class Attempt(NamedTuple):
    """A stage, and the precision that was asked for."""

    asked: str
    stage: Stage


def attempts(scores: Sequence[SolveScore]) -> list[Attempt]:
    """Return every stage of every score, in order."""
    return [Attempt(score.precision, stage) for score in scores for stage in score.stages]


def _speed(score: SolveScore) -> str:
    return "-" if score.of_double is None else f"{score.of_double:.2f}"


def _steps(stage: Stage) -> str:
    return "-" if stage.code < 0 else str(stage.code)


def _path(score: SolveScore) -> str:
    return ", ".join(f"{s.precision}: {'left' if s.code < 0 else s.code}" for s in score.stages)


def _known(number: float) -> str:
    return f"{number:.1e}" if math.isfinite(number) else "-"


SCORE_COLUMNS: list[Column[SolveScore]] = [
    Column("precision", "precision", "The precision asked for.", lambda s: s.precision, lambda s: s.precision,
           is_name=True),
    Column("path", "path", "The precisions tried, with the steps of the one that converged.", _path,
           lambda s: len(s.path), is_name=True),
    Column("backward error", "backward\nerror",
           "|b - A x| / (|A| |x| + |b|), infinity norms; of iterations |b - A x| / |b|.",
           lambda s: _known(s.backward_error), lambda s: s.backward_error),
    Column("condition", "condition", "Estimate, infinity norm, rows and columns equilibrated.",
           lambda s: "too large" if s.condition == math.inf else _known(s.condition), lambda s: s.condition,
           spare=1),
    Column("seconds", "seconds", "Time of the whole solution.",
           lambda s: f"{s.seconds:.3f}", lambda s: s.seconds),
    Column("speed", "times\nfp64", "Time of LAPACK in double precision over this one; measured by --compare.",
           _speed, lambda s: math.nan if s.of_double is None else s.of_double),
]  # fmt: skip

STAGE_COLUMNS: list[Column[Attempt]] = [
    Column("asked for", "asked for", "The precision asked for.", lambda a: a.asked, lambda a: a.asked,
           is_name=True),
    Column("stage", "stage", "The precision tried.",
           lambda a: a.stage.precision, lambda a: a.stage.precision, is_name=True),
    Column("method", "method", "The factorization.", lambda a: a.stage.method, lambda a: a.stage.method,
           is_name=True),
    Column("steps", "steps", "Steps of refinement, or iterations; none where it did not converge.",
           lambda a: _steps(a.stage), lambda a: math.nan if a.stage.code < 0 else a.stage.code),
    Column("GMRES", "GMRES", "Iterations of GMRES within those steps.",
           lambda a: str(a.stage.inner), lambda a: a.stage.inner),
    Column("factorize", "factorize\ns", "Seconds of the factorization, with the evidence gathered before it.",
           lambda a: f"{a.stage.factor_seconds:.3f}", lambda a: a.stage.factor_seconds),
    Column("refine", "refine\ns", "Seconds of everything after it.",
           lambda a: f"{a.stage.refine_seconds:.3f}", lambda a: a.stage.refine_seconds),
    Column("left because", "left because", "Why the next stage was taken.",
           lambda a: a.stage.reason or "solved", lambda a: a.stage.reason or "solved", is_name=True),
]  # fmt: skip
