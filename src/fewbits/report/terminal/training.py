"""Tables about training: the runs of some recipes, and the catalogue of recipes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType

from fewbits.records import TrainRun
from fewbits.report.columns.training import TRAIN_COLUMNS, sent_sentences
from fewbits.report.judgement import evidence_sentence
from fewbits.report.recipe_runs import grouped
from fewbits.report.terminal.sheet import Heading, Sheet, Wrapped


def train_table(runs: Sequence[TrainRun]) -> RenderableType:
    """Lay out one row per recipe, and below what its runs warned of."""
    first, count = runs[0], len({r.seed for r in runs})
    better = "lower is better" if first.lower_is_better else "higher is better"
    seeds = "1 seed" if count == 1 else f"{count} seeds"
    heading = Heading(f"{first.task}, {first.steps} steps, {seeds}", f"{first.metric}: {better}")
    warnings = dict.fromkeys(f"{r.recipe}: {text}" for r in runs for text in r.warnings)
    rows = grouped(runs)
    evidence = [(r.runs[0].recipe, r.evidence) for r in rows if r.evidence and r.runs[0].recipe != "fp32"]
    notes = [Wrapped(f"warning: {text}") for text in warnings]
    notes = [*map(Wrapped, sent_sentences(runs)), *notes]
    return Group(Sheet(heading, TRAIN_COLUMNS, rows), Wrapped(evidence_sentence(evidence)), *notes)
