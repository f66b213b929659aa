"""Tables about training: the runs of some recipes, and the catalogue of recipes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fewbits.records import TrainRun
from fewbits.report import quantities as q
from fewbits.report.columns import Column
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
    def spread(self) -> float:
        """Largest less smallest value of the metric."""
        values = [r.value for r in self.runs]
        return max(values) - min(values)

    @property
    def difference(self) -> float | None:
        """Mean less the baseline's mean; None without a baseline."""
        return self.mean - fmean(r.value for r in self.baseline) if self.baseline else None

    @property
    def slower(self) -> float | None:
        """Time of a step over the baseline's; None without a baseline."""
        mine = fmean(r.seconds_per_step for r in self.runs)
        return mine / fmean(r.seconds_per_step for r in self.baseline) if self.baseline else None


_COLUMNS: list[Column[RecipeRuns]] = [
    Column("recipe", "recipe", "What was narrow.", lambda r: r.runs[0].recipe, lambda r: r.runs[0].recipe),
    Column("metric", "metric", "Held-out; mean over seeds.", lambda r: f"{r.mean:.4f}", lambda r: r.mean),
    Column("spread", "spread", "Largest less smallest over seeds.", lambda r: f"{r.spread:.4f}",
           lambda r: r.spread),
    Column("difference", "less\nfp32", "Mean less that of fp32.", lambda r: _signed(r.difference),
           lambda r: r.difference or 0.0),
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
    return Group(Sheet(title, _COLUMNS, grouped(runs)), *notes)


def recipes_table(rows: Sequence[tuple[str, str, str]]) -> Table:
    """Lay out the catalogue: name, what it does in a few words, source."""
    table = Table(title="Recipes", title_justify="left")
    for column in ("recipe", "what is narrow", "source"):
        table.add_column(column)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4f}"
