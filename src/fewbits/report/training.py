"""Tables about training: the runs of some recipes, and the catalogue of recipes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from statistics import fmean

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fewbits.evidence import Evidence, paired
from fewbits.records import TrainRun
from fewbits.report import quantities as q
from fewbits.report.columns import Column
from fewbits.report.judgement import evidence_sentence, verdict
from fewbits.report.table import Sheet, heading


@dataclass(frozen=True)
class RecipeRuns:
    """All runs of one recipe on one task, and those of the baseline with the same seeds, if there are any."""

    runs: tuple[TrainRun, ...]
    baseline: tuple[TrainRun, ...]

    @property
    def mean(self) -> float:
        """Mean of the metric over seeds."""
        return fmean(r.value for r in self.runs)

    @property
    def evidence(self) -> Evidence | None:
        """What the seeds say about the difference from the baseline; None where no seed has both."""
        base = {r.seed: r.value for r in self.baseline}
        both = [r for r in self.runs if r.seed in base]
        if not both:
            return None
        return paired([r.value for r in both], [base[r.seed] for r in both], both[0].resolution)

    @property
    def verdict(self) -> str:
        """Return "worse" or "better" than the baseline where that is evident, else ""."""
        return verdict(self.evidence, higher_is_better=not self.runs[0].lower_is_better)

    @property
    def slower(self) -> float | None:
        """Time of a step over the baseline's; None without a baseline."""
        mine = fmean(r.seconds_per_step for r in self.runs)
        return mine / fmean(r.seconds_per_step for r in self.baseline) if self.baseline else None


TRAIN_COLUMNS: list[Column[RecipeRuns]] = [
    Column("recipe", "recipe", "What was narrow.", lambda r: r.runs[0].recipe, lambda r: r.runs[0].recipe),
    Column("metric", "metric", "Held-out; mean over seeds.", lambda r: f"{r.mean:.4f}", lambda r: r.mean),
    Column("difference", "less\nfp32", "Mean over seeds, each less fp32 from the same seed; * where that is"
           " evidence.", lambda r: _signed(r.evidence), lambda r: r.evidence.mean if r.evidence else 0.0,
           lambda r: r.verdict),
    Column("95 % interval (+-)", "95 %\n+-", "The difference is known this well, from paired seeds.",
           lambda r: q.margin(r.evidence.margin if r.evidence else nan, 4),
           lambda r: r.evidence.margin if r.evidence else nan),
    Column("final loss", "final\nloss", "Of the last steps; mean over seeds.",
           lambda r: f"{fmean(x.final_loss for x in r.runs):.4f}", lambda r: r.runs[0].final_loss),
    Column("bytes per value", "bytes/\nvalue", "Parameters, gradients and optimizer states.",
           lambda r: f"{r.runs[0].bytes_per_value:.1f}", lambda r: r.runs[0].bytes_per_value),
    Column("ms per step", "ms/\nstep", "Mean over seeds.",
           lambda r: f"{1e3 * fmean(x.seconds_per_step for x in r.runs):.1f}",
           lambda r: r.runs[0].seconds_per_step),
    Column("time", "time/\nfp32", "Of a step, over that of fp32.",
           lambda r: "-" if r.slower is None else f"{r.slower:.2f}", lambda r: r.slower or 0.0),
]  # fmt: skip


def grouped(runs: Sequence[TrainRun]) -> list[RecipeRuns]:
    """Return the runs of each recipe together, in the order of their first ones."""
    names = list(dict.fromkeys(r.recipe for r in runs))
    baseline = tuple(r for r in runs if r.recipe == "fp32")
    return [RecipeRuns(tuple(r for r in runs if r.recipe == name), baseline) for name in names]


def train_table(runs: Sequence[TrainRun]) -> RenderableType:
    """Lay out one row per recipe, and below what its runs warned of."""
    first, count = runs[0], len({r.seed for r in runs})
    better = "lower is better" if first.lower_is_better else "higher is better"
    seeds = "1 seed" if count == 1 else f"{count} seeds"
    title = heading(f"{first.task}, {first.steps} steps, {seeds}", f"{first.metric}: {better}")
    said = dict.fromkeys(f"{r.recipe}: {w}" for r in runs for w in r.warnings)
    notes = [Text(f"warning: {q.visible(text)}") for text in said]
    rows = grouped(runs)
    found = [(r.runs[0].recipe, r.evidence) for r in rows if r.evidence and r.runs[0].recipe != "fp32"]
    return Group(Sheet(title, TRAIN_COLUMNS, rows), Text(evidence_sentence(found)), *notes)


def recipes_table(rows: Sequence[tuple[str, str, str]]) -> Table:
    """Lay out the catalogue: name, what it does in a few words, source."""
    table = Table(title="Recipes", title_justify="left")
    for column in ("recipe", "what is narrow", "source"):
        table.add_column(column)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _signed(evidence: Evidence | None) -> str:
    return "-" if evidence is None else q.signed(evidence.mean, 4)
