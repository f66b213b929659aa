"""The columns about the tensors of a checkpoint, and about all of them in one format."""

from __future__ import annotations

import math

from fewbits.records import CheckpointReport, TensorSummary
from fewbits.report import quantities as q
from fewbits.report.columns.column import BITS, FORMAT, QSNR, Column
from fewbits.report.totals import FormatTotal


def proposal_columns(report: CheckpointReport) -> list[Column[TensorSummary]]:
    """Build the columns about each tensor as it is stored and the format proposed for it."""
    levels = {(s.tensor, s.format): s.error.qsnr_db for s in report.scores}
    proposal = f"Chosen so that all together {report.bound}; keep: leave it as it is."

    def qsnr(tensor: TensorSummary) -> float:
        return levels.get((tensor.tensor, tensor.proposed or ""), math.nan)

    return [
        Column("tensor", "tensor", "Name in the file.", lambda t: q.visible(t.tensor), lambda t: t.tensor,
               is_name=True),
        Column("shape", "shape", "Extents; sorts by stored bytes.",
               lambda t: q.shape(t.shape), lambda t: t.stored_bytes, spare=1),
        Column("stored as", "stored\nas", "Data type in the file.",
               lambda t: q.visible(t.dtype), lambda t: t.dtype, is_name=True, spare=3),
        Column("outlier ratio", "outlier\nratio", "Largest magnitude over root mean square.",
               lambda t: "-" if math.isnan(t.outlier_ratio) else f"{t.outlier_ratio:.1f}",
               lambda t: t.outlier_ratio, spare=2),
        Column("proposal", "proposal", proposal,
               lambda t: q.visible(t.proposed or "keep"), lambda t: t.proposed or "", is_name=True),
        Column("its QSNR (dB)", "QSNR\ndB", QSNR,
               lambda t: q.decibels(qsnr(t)) if t.proposed else "-", qsnr),
        Column("new size", "new\nsize", "Bytes if the proposal is followed.",
               lambda t: q.size(t.proposed_bytes), lambda t: t.proposed_bytes),
    ]  # fmt: skip


def qsnr_columns(report: CheckpointReport) -> list[Column[TensorSummary]]:
    """Build one column per format: the QSNR of each tensor in it, from few bits to many."""
    levels = {(s.tensor, s.format): s.error.qsnr_db for s in report.scores}
    width = {s.format: s.bits_per_value for s in report.scores}

    def column(name: str) -> Column[TensorSummary]:
        def order(tensor: TensorSummary) -> float:
            return levels.get((tensor.tensor, name), math.nan)

        def text(tensor: TensorSummary) -> str:
            return q.decibels(order(tensor)) if (tensor.tensor, name) in levels else "-"

        about = f"QSNR in dB at {q.bits(width[name])} bits per value. {QSNR}"
        return Column(q.visible(name), _head(q.visible(name)), about, text, order)

    return [column(name) for name in sorted(width, key=lambda name: (width[name], name))]


def _head(name: str) -> str:
    """Write the name of a format above its column: what the grammar writes may be wider than a terminal."""
    return name.replace("_", "_\n") if len(name) <= 24 else "\n".join(q.lines(name, 14))


REASON: Column[TensorSummary] = Column(
    "reason",
    "reason",
    "Why this format, or why none.",
    lambda t: q.visible(t.reason),
    lambda t: t.reason,
    is_name=True,
)

PASSING = "tensors that pass"

TOTAL_COLUMNS: list[Column[FormatTotal]] = [
    Column("format", "format", FORMAT, lambda t: q.visible(t.format), lambda t: t.format, is_name=True),
    Column("bits per value", "bits/\nvalue", BITS,
           lambda t: q.bits(t.bits_per_value), lambda t: t.bits_per_value),
    Column("checkpoint size", "size", "All measured tensors in this format, the others as they are stored.",
           lambda t: q.size(t.total_bytes), lambda t: t.total_bytes),
    Column("worst QSNR (dB)", "worst", f"Of the worst tensor. {QSNR}",
           lambda t: q.decibels(t.lowest_qsnr_db), lambda t: t.lowest_qsnr_db),
    Column("median QSNR (dB)", "median", f"Of the median tensor. {QSNR}",
           lambda t: q.decibels(t.median_qsnr_db), lambda t: t.median_qsnr_db),
    Column(PASSING, "pass", "Tensors at or above the QSNR asked for.",
           lambda t: f"{t.passing} of {t.measured}", lambda t: t.passing),
]  # fmt: skip
