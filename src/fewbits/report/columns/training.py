"""The columns about recipes."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

from fewbits.evidence import Evidence
from fewbits.records import TrainRun
from fewbits.report import quantities as q
from fewbits.report.columns.column import Column
from fewbits.report.recipe_runs import RecipeRuns

TRAIN_COLUMNS: list[Column[RecipeRuns]] = [
    Column("recipe", "recipe", "Name of the recipe, and changes to it.",
           lambda r: r.runs[0].recipe, lambda r: r.runs[0].recipe, is_name=True),
    Column("metric", "metric", "On held-out data; mean over seeds.",
           lambda r: q.plain(r.mean, 4), lambda r: r.mean),
    Column("difference", "minus\nfp32", "Mean over seeds, each minus fp32 from the same seed; * where that is"
           " evidence.", lambda r: _signed(r.evidence), lambda r: r.evidence.mean if r.evidence else nan,
           lambda r: r.verdict),
    Column("95 % interval (+-)", "95 %\n+-", "Half the interval of the difference, from paired seeds.",
           lambda r: q.margin(r.evidence.margin if r.evidence else nan, 4),
           lambda r: r.evidence.margin if r.evidence else nan),
    Column("final loss", "final\nloss", "Mean of the last steps and over seeds.",
           lambda r: q.plain(r.final_loss, 4), lambda r: r.final_loss, spare=2),
    Column("bytes per value", "bytes/\nvalue", "Parameters, gradients and optimizer states.",
           lambda r: f"{r.runs[0].bytes_per_value:.1f}", lambda r: r.runs[0].bytes_per_value),
    Column("ms per step", "ms/\nstep", "Mean over seeds.",
           lambda r: f"{1e3 * r.seconds_per_step:.1f}", lambda r: r.seconds_per_step, spare=1),
    Column("time", "time/\nfp32", "Time of a step over that of fp32.",
           lambda r: "-" if r.slower is None else f"{r.slower:.2f}",
           lambda r: nan if r.slower is None else r.slower),
]  # fmt: skip


def _signed(evidence: Evidence | None) -> str:
    return "-" if evidence is None else q.signed(evidence.mean, 4)


def sent_sentences(runs: Sequence[TrainRun]) -> list[str]:
    """Say what travelled between the processes of the runs, each sentence once; nothing for one process."""
    return list(dict.fromkeys(_sent(run) for run in runs if run.processes > 1))


def _sent(run: TrainRun) -> str:
    less = f"{run.bytes_wide / run.bytes_sent:.1f} times fewer" if run.bytes_sent else "none"
    return (
        f"{run.recipe}: {run.processes} processes, {run.codec}: each sent {run.bytes_sent / 1e6:.3f} MB in a"
        f" step, {run.bytes_wide / 1e6:.3f} MB as the values are: {less}"
    )
