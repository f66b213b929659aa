"""The table of a solved system."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from fewbits.records import SolveScore
from fewbits.report.columns import Column
from fewbits.report.table import Sheet, heading

_COLUMNS: list[Column[SolveScore]] = [
    Column("precision", "precision", "Asked for.", lambda s: s.precision, lambda s: s.precision),
    Column("path", "path", "What was tried: steps where it converged, else a code below zero.",
           lambda s: ", ".join(s.path), lambda s: len(s.path)),
    Column("backward error", "backward\nerror", "|b - A x| / (|A| |x| + |b|), infinity norms.",
           lambda s: f"{s.backward_error:.1e}", lambda s: s.backward_error),
    Column("condition", "condition", "Estimate, infinity norm.", lambda s: f"{s.condition:.1e}",
           lambda s: s.condition),
    Column("seconds", "seconds", "Of the whole solution.", lambda s: f"{s.seconds:.3f}", lambda s: s.seconds),
    Column("speed", "times\nfp64", "Time in double precision over this one.", lambda s: f"{s.of_double:.2f}",
           lambda s: s.of_double),
]  # fmt: skip


def solve_table(scores: Sequence[SolveScore]) -> RenderableType:
    """Lay out one row per precision."""
    return Sheet(heading(scores[0].matrix, f"{scores[0].unknowns} unknowns"), _COLUMNS, list(scores))
