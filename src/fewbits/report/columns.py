"""The columns of every report: what is printed, what it sorts by and what it means, once for terminal and page."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from fewbits.records import CheckpointReport, MatrixScore, TaskScore, TensorSummary
from fewbits.report import quantities as q
from fewbits.report.judgement import Metric, beyond_spread, quality
from fewbits.report.totals import FormatTotal

Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column: how a row's cell reads and how it sorts."""

    title: str  # header on the page
    narrow: str  # header in the terminal, broken into lines by hand
    text: Callable[[Row], str]
    order: Callable[[Row], float | str]  # a number sorts by value, a text as text
    about: str  # one sentence for who does not know the word
    judge: Callable[[Row], str] | None = None  # "worse", "better" or ""

    @property
    def can_mark(self) -> bool:
        """Whether rows can be marked in this column."""
        return self.judge is not None

    def mark(self, row: Row) -> str:
        """Return "worse" or "better" where the row's number is evidence of that, "" otherwise."""
        return self.judge(row) if self.judge else ""


FORMAT_ABOUT = "Number format, as --formats takes it."
BITS_ABOUT = "Stored bits per value, shared scales counted."
QSNR_ABOUT = "Signal power over the power of the rounding noise, in decibels; exact: nothing changed."
FLUSHED_ABOUT = "Nonzero values that became zero."
SATURATED_ABOUT = "Finite values beyond the largest that the element can hold."


def _judged(score: TaskScore) -> str:
    if not beyond_spread(score):
        return ""
    return "better" if quality(score) > 0 else "worse"


def _spread_of_values(score: TaskScore) -> float:
    return max(score.values) - min(score.values)


def task_columns(metric: Metric) -> list[Column[TaskScore]]:
    """Build the columns of the table of one task."""
    d, unit = metric.digits, metric.difference_unit
    direction = "higher" if metric.higher_is_better else "lower"
    return [
        Column("format", "format", lambda s: q.visible(s.format), lambda s: s.format, FORMAT_ABOUT),
        Column("bits per value", "bits/\nvalue", lambda s: q.bits(s.bits_per_value), lambda s: s.bits_per_value,
               BITS_ABOUT),
        Column("model size", "model\nsize", lambda s: q.size(s.model_bytes), lambda s: s.model_bytes,
               "All parameters: the cast ones in this format, the rest in FP32."),
        Column(metric.column, metric.short,
               lambda s: q.plain(s.mean, d), lambda s: s.mean,
               f"Mean over seeds of the {metric.title} on held-out data; {direction} is better."),
        Column("difference from FP32", "minus\nFP32", lambda s: q.signed(s.difference, d), lambda s: s.difference,
               f"Mean over seeds, each against its own FP32 model, in {unit}; marked where it exceeds the seed "
               "spread of FP32.", _judged),
        Column("seed spread", "seed\nspread", lambda s: q.plain(_spread_of_values(s), d), _spread_of_values,
               f"Largest minus smallest value over seeds, in {unit}."),
        Column("weight QSNR (dB)", "wt.\nQSNR\ndB", lambda s: q.decibels(s.weight_qsnr_db),
               lambda s: s.weight_qsnr_db, QSNR_ABOUT),
        Column("activation QSNR (dB)", "act.\nQSNR\ndB", lambda s: q.decibels(s.activation_qsnr_db),
               lambda s: s.activation_qsnr_db, QSNR_ABOUT),
        Column("saturated (%)", "sat.\n%", lambda s: q.percent(s.saturated_fraction),
               lambda s: s.saturated_fraction, SATURATED_ABOUT),
        Column("flushed (%)", "flush\n%", lambda s: q.percent(s.flushed_fraction),
               lambda s: s.flushed_fraction, FLUSHED_ABOUT),
        Column("area x memory (proxy)", "area\nx mem\nproxy",
               lambda s: "-" if s.area_memory_proxy is None else f"{s.area_memory_proxy:.2f}",
               lambda s: math.nan if s.area_memory_proxy is None else s.area_memory_proxy,
               "Arithmetic area times memory relative to FP8 E4M3: a proxy from bit counts, not a synthesized "
               "circuit."),
    ]  # fmt: skip


def _worsening(score: MatrixScore) -> float:
    return score.condition / score.condition_fp64 if score.condition_fp64 else math.nan


def _times(ratio: float) -> str:
    return f"{ratio:.3g}" if math.isfinite(ratio) else "-"


def proposal_columns(report: CheckpointReport) -> list[Column[TensorSummary]]:
    """Build the columns about each tensor as it is stored and the format proposed for it."""
    found = {(s.tensor, s.format): s.error.qsnr_db for s in report.scores}

    def qsnr(tensor: TensorSummary) -> float:
        return found.get((tensor.tensor, tensor.proposed or ""), math.nan)

    return [
        Column("tensor", "tensor", lambda t: q.visible(t.tensor), lambda t: t.tensor, "Name in the file."),
        Column("shape", "shape", lambda t: q.shape(t.shape), lambda t: float(t.stored_bytes), "Extents."),
        Column("stored as", "stored\nas", lambda t: q.visible(t.dtype), lambda t: t.dtype, "Data type in the file."),
        Column("outlier ratio", "outlier\nratio", lambda t: f"{t.outlier_ratio:.1f}", lambda t: t.outlier_ratio,
               "Largest magnitude over root mean square."),
        Column("proposal", "proposal", lambda t: q.visible(t.proposed or "keep"), lambda t: t.proposed or "",
               f"Narrowest format with a QSNR of at least {report.min_qsnr_db:g} dB; keep: leave it as it is."),
        Column("its QSNR (dB)", "QSNR\ndB", lambda t: q.decibels(qsnr(t)) if t.proposed else "-", qsnr, QSNR_ABOUT),
        Column("new size", "new\nsize", lambda t: q.size(t.proposed_bytes), lambda t: t.proposed_bytes,
               "Bytes if the proposal is followed."),
    ]  # fmt: skip


def qsnr_columns(report: CheckpointReport) -> list[Column[TensorSummary]]:
    """Build one column per format: the QSNR of each tensor in it, from few bits to many."""
    found = {(s.tensor, s.format): s.error.qsnr_db for s in report.scores}
    width = {s.format: s.bits_per_value for s in report.scores}

    def column(name: str) -> Column[TensorSummary]:
        def order(tensor: TensorSummary) -> float:
            return found.get((tensor.tensor, name), math.nan)

        def text(tensor: TensorSummary) -> str:
            return q.decibels(order(tensor)) if (tensor.tensor, name) in found else "-"

        about = f"QSNR in dB at {q.bits(width[name])} bits per value. {QSNR_ABOUT}"
        return Column(q.visible(name), q.visible(name).replace("_", "_\n"), text, order, about)

    return [column(name) for name in sorted(width, key=lambda name: (width[name], name))]


REASON: Column[TensorSummary] = Column(
    "reason", "reason", lambda t: q.visible(t.reason), lambda t: t.reason, "Why this format, or why none."
)

TOTAL_COLUMNS: list[Column[FormatTotal]] = [
    Column("format", "format", lambda t: q.visible(t.format), lambda t: t.format, FORMAT_ABOUT),
    Column("bits per value", "bits/\nvalue", lambda t: q.bits(t.bits_per_value), lambda t: t.bits_per_value,
           BITS_ABOUT),
    Column("checkpoint size", "size", lambda t: q.size(t.total_bytes), lambda t: t.total_bytes,
           "All measured tensors in this format, the others as they are stored."),
    Column("worst QSNR (dB)", "worst", lambda t: q.decibels(t.lowest_qsnr_db), lambda t: t.lowest_qsnr_db,
           f"Of the worst tensor. {QSNR_ABOUT}"),
    Column("median QSNR (dB)", "median", lambda t: q.decibels(t.median_qsnr_db), lambda t: t.median_qsnr_db,
           f"Of the median tensor. {QSNR_ABOUT}"),
    Column("tensors that pass", "pass", lambda t: f"{t.passing} of {t.measured}", lambda t: t.passing,
           "Tensors at or above the QSNR asked for."),
]  # fmt: skip

MATRIX_COLUMNS: list[Column[MatrixScore]] = [
    Column("format", "format", lambda s: q.visible(s.format), lambda s: s.format, FORMAT_ABOUT),
    Column("bits per value", "bits/\nvalue", lambda s: q.bits(s.bits_per_value), lambda s: s.bits_per_value,
           BITS_ABOUT),
    Column("size of values", "size of\nvalues", lambda s: q.size(s.values_bytes), lambda s: s.values_bytes,
           "Bytes of the stored entries without their indices."),
    Column("Frobenius error", "Frobenius\nerror", lambda s: q.relative(s.frobenius_error),
           lambda s: s.frobenius_error, "Norm of A - Q(A) over the norm of A."),
    Column("largest relative entry error", "largest\nrelative\nerror",
           lambda s: q.relative(s.error.max_relative_error), lambda s: s.error.max_relative_error,
           "Over the nonzero entries; 1 means that an entry vanished."),
    Column("flushed (%)", "flush\n%", lambda s: q.percent(s.error.flushed_fraction),
           lambda s: s.error.flushed_fraction, FLUSHED_ABOUT),
    Column("saturated (%)", "sat.\n%", lambda s: q.percent(s.error.saturated_fraction),
           lambda s: s.error.saturated_fraction, SATURATED_ABOUT),
    Column("condition", "condition", lambda s: q.condition(s.condition), lambda s: s.condition,
           "Estimate of the 1-norm condition number of the matrix in this format."),
    Column("times that of FP64", "times\nFP64", lambda s: _times(_worsening(s)), lambda s: _worsening(s),
           "Its condition number over that of the matrix as given."),
    Column("note", "note", lambda s: q.visible(s.note), lambda s: s.note, "What to watch."),
]  # fmt: skip
