"""The columns of every report, for terminal and page: what is printed, what it sorts by, what it means."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fewbits.records import CheckpointReport, MatrixScore, TaskScore, TensorSummary
from fewbits.report import quantities as q
from fewbits.report.judgement import Metric, metric_of, task_verdict, verdict
from fewbits.report.totals import FormatTotal

Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column: how a row's cell reads and how it sorts."""

    title: str  # header on the page
    narrow: str  # header in the terminal, broken into lines by hand
    about: str  # one sentence for those who do not know the word
    text: Callable[[Row], str]
    order: Callable[[Row], float | str]  # a number sorts by value, a text as text; NaN comes last
    judge: Callable[[Row], str] | None = None  # "worse", "better" or ""

    @property
    def can_mark(self) -> bool:
        """Whether rows can be marked in this column."""
        return self.judge is not None

    def mark(self, row: Row) -> str:
        """Return "worse" or "better" where the row's number is evidence of that, "" otherwise."""
        return self.judge(row) if self.judge else ""


_FORMAT = "Number format, as --formats takes it."
_BITS = "Stored bits per value, shared scales counted."
_QSNR = "Signal power over the power of the rounding noise, in decibels; exact: nothing changed."
_FLUSHED = "Nonzero values that became zero."
_SATURATED = "Finite values beyond the largest that the element can hold."


def _trained_difference(score: TaskScore) -> float:
    return math.nan if score.trained_difference is None else score.trained_difference


def _proxy(score: TaskScore) -> float:
    return math.nan if score.area_memory_proxy is None else score.area_memory_proxy


def task_columns(scores: Sequence[TaskScore]) -> list[Column[TaskScore]]:
    """Build the columns of the table of one task; training has one where it was measured."""
    metric = metric_of(scores[0])
    d, unit = metric.digits, metric.difference_unit
    direction = "higher" if metric.higher_is_better else "lower"
    mean = f"Mean over seeds of the {metric.title} on held-out data; {direction} is better."
    difference = (
        f"Mean over seeds, each against its own FP32 model, in {unit}; marked where that is evidence."
    )
    proxy = "Arithmetic area times memory relative to FP8 E4M3: a proxy from bit counts, not from synthesis."
    trained = [_trained_column(metric)] if scores[0].trained else []
    return [
        Column("format", "format", _FORMAT, lambda s: q.visible(s.format), lambda s: s.format),
        Column("bits per value", "bits/\nvalue", _BITS,
               lambda s: q.bits(s.bits_per_value), lambda s: s.bits_per_value),
        Column("model size", "model\nsize", "All parameters: the cast ones in this format, the rest in FP32.",
               lambda s: q.size(s.model_bytes), lambda s: s.model_bytes),
        Column(metric.column, metric.short, mean, lambda s: q.plain(s.mean, d), lambda s: s.mean),
        Column("difference from FP32", "minus\nFP32", difference,
               lambda s: q.signed(s.difference, d), lambda s: s.difference, task_verdict),
        *trained,
        Column("95 % interval (+-)", "95 %\n+-", f"How well the paired seeds tell the difference, {unit}.",
               lambda s: q.margin(s.evidence.margin, d), lambda s: s.evidence.margin),
        Column("weight QSNR (dB)", "wt.\nQSNR\ndB", _QSNR,
               lambda s: q.decibels(s.weight_qsnr_db), lambda s: s.weight_qsnr_db),
        Column("activation QSNR (dB)", "act.\nQSNR\ndB", _QSNR,
               lambda s: q.decibels(s.activation_qsnr_db), lambda s: s.activation_qsnr_db),
        Column("saturated (%)", "sat.\n%", _SATURATED,
               lambda s: q.percent(s.saturated_fraction), lambda s: s.saturated_fraction),
        Column("flushed (%)", "flush\n%", _FLUSHED,
               lambda s: q.percent(s.flushed_fraction), lambda s: s.flushed_fraction),
        Column("area x memory (proxy)", "area\nx mem\nproxy", proxy,
               lambda s: "-" if math.isnan(_proxy(s)) else f"{_proxy(s):.2f}", _proxy),
    ]  # fmt: skip


def _trained_column(metric: Metric) -> Column[TaskScore]:
    def judged(score: TaskScore) -> str:
        return verdict(score.trained_evidence, higher_is_better=metric.higher_is_better)

    about = (
        "Mean over seeds, trained from scratch in this format and evaluated without a cast, each against FP32"
        f" trained by the same loop, in {metric.difference_unit}; marked where that is evidence."
    )
    return Column(
        "trained in it, minus FP32", "trained\nin it", about,
        lambda s: q.signed(_trained_difference(s), metric.digits), _trained_difference, judged,
    )  # fmt: skip


def proposal_columns(report: CheckpointReport) -> list[Column[TensorSummary]]:
    """Build the columns about each tensor as it is stored and the format proposed for it."""
    found = {(s.tensor, s.format): s.error.qsnr_db for s in report.scores}
    proposal = f"Of the fewest bytes in all that keep {report.min_qsnr_db:g} dB; keep: leave it as it is."

    def qsnr(tensor: TensorSummary) -> float:
        return found.get((tensor.tensor, tensor.proposed or ""), math.nan)

    return [
        Column("tensor", "tensor", "Name in the file.", lambda t: q.visible(t.tensor), lambda t: t.tensor),
        Column("shape", "shape", "Extents; sorts by stored bytes.",
               lambda t: q.shape(t.shape), lambda t: t.stored_bytes),
        Column("stored as", "stored\nas", "Data type in the file.",
               lambda t: q.visible(t.dtype), lambda t: t.dtype),
        Column("outlier ratio", "outlier\nratio", "Largest magnitude over root mean square.",
               lambda t: "-" if math.isnan(t.outlier_ratio) else f"{t.outlier_ratio:.1f}",
               lambda t: t.outlier_ratio),
        Column("proposal", "proposal", proposal,
               lambda t: q.visible(t.proposed or "keep"), lambda t: t.proposed or ""),
        Column("its QSNR (dB)", "QSNR\ndB", _QSNR,
               lambda t: q.decibels(qsnr(t)) if t.proposed else "-", qsnr),
        Column("new size", "new\nsize", "Bytes if the proposal is followed.",
               lambda t: q.size(t.proposed_bytes), lambda t: t.proposed_bytes),
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

        about = f"QSNR in dB at {q.bits(width[name])} bits per value. {_QSNR}"
        return Column(q.visible(name), q.visible(name).replace("_", "_\n"), about, text, order)

    return [column(name) for name in sorted(width, key=lambda name: (width[name], name))]


REASON: Column[TensorSummary] = Column(
    "reason", "reason", "Why this format, or why none.", lambda t: q.visible(t.reason), lambda t: t.reason
)

TOTAL_COLUMNS: list[Column[FormatTotal]] = [
    Column("format", "format", _FORMAT, lambda t: q.visible(t.format), lambda t: t.format),
    Column("bits per value", "bits/\nvalue", _BITS,
           lambda t: q.bits(t.bits_per_value), lambda t: t.bits_per_value),
    Column("checkpoint size", "size", "All measured tensors in this format, the others as they are stored.",
           lambda t: q.size(t.total_bytes), lambda t: t.total_bytes),
    Column("worst QSNR (dB)", "worst", f"Of the worst tensor. {_QSNR}",
           lambda t: q.decibels(t.lowest_qsnr_db), lambda t: t.lowest_qsnr_db),
    Column("median QSNR (dB)", "median", f"Of the median tensor. {_QSNR}",
           lambda t: q.decibels(t.median_qsnr_db), lambda t: t.median_qsnr_db),
    Column("tensors that pass", "pass", "Tensors at or above the QSNR asked for.",
           lambda t: f"{t.passing} of {t.measured}", lambda t: t.passing),
]  # fmt: skip


def _worsening(score: MatrixScore) -> float:
    return score.condition / score.condition_fp64 if score.condition_fp64 else math.nan


def _times(ratio: float) -> str:
    return f"{ratio:.3g}" if math.isfinite(ratio) else "-"


MATRIX_COLUMNS: list[Column[MatrixScore]] = [
    Column("format", "format", _FORMAT, lambda s: q.visible(s.format), lambda s: s.format),
    Column("bits per value", "bits/\nvalue", _BITS,
           lambda s: q.bits(s.bits_per_value), lambda s: s.bits_per_value),
    Column("size of values", "size of\nvalues", "Bytes of the stored entries without their indices.",
           lambda s: q.size(s.values_bytes), lambda s: s.values_bytes),
    Column("Frobenius error", "Frobenius\nerror", "Norm of A - Q(A) over the norm of A.",
           lambda s: q.relative(s.frobenius_error), lambda s: s.frobenius_error),
    Column("largest relative entry error", "largest\nrelative\nerror",
           "Over the nonzero entries; 1 means that an entry vanished.",
           lambda s: q.relative(s.error.max_relative_error), lambda s: s.error.max_relative_error),
    Column("flushed (%)", "flush\n%", _FLUSHED,
           lambda s: q.percent(s.error.flushed_fraction), lambda s: s.error.flushed_fraction),
    Column("saturated (%)", "sat.\n%", _SATURATED,
           lambda s: q.percent(s.error.saturated_fraction), lambda s: s.error.saturated_fraction),
    Column("condition", "condition", "Estimate of the 1-norm condition number of the matrix in this format.",
           lambda s: q.condition(s.condition), lambda s: s.condition),
    Column("times that of FP64", "times\nFP64", "Its condition number over that of the matrix as given.",
           lambda s: _times(_worsening(s)), _worsening),
    Column("note", "note", "What to watch.", lambda s: q.visible(s.note), lambda s: s.note),
]  # fmt: skip
