"""A whole checkpoint in one format: its size and the QSNR of its tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from fewbits.records import CheckpointReport, TensorScore


@dataclass(frozen=True)
class FormatTotal:
    """Every measured tensor of a checkpoint in one format, the others as they are stored."""

    format: str
    bits_per_value: float
    total_bytes: int
    lowest_qsnr_db: float
    median_qsnr_db: float
    highest_qsnr_db: float
    passing: int  # tensors at or above the QSNR asked for
    measured: int


def format_totals(report: CheckpointReport) -> list[FormatTotal]:
    """Sum up a checkpoint per format, from few bits to many."""
    groups: dict[str, list[TensorScore]] = {}
    castable = {t.tensor for t in report.tensors if t.castable}
    for score in report.scores:
        if score.tensor in castable:
            groups.setdefault(score.format, []).append(score)
    totals = [_total(report, group) for group in groups.values()]
    return sorted(totals, key=lambda t: (t.bits_per_value, t.format))


def _total(report: CheckpointReport, group: list[TensorScore]) -> FormatTotal:
    measured = {s.tensor for s in group}
    untouched = sum(t.stored_bytes for t in report.tensors if t.tensor not in measured)
    # A tensor of zeros has no QSNR; it says nothing about the format.
    levels = [s.error.qsnr_db for s in group if not math.isnan(s.error.qsnr_db)] or [math.nan]
    return FormatTotal(
        format=group[0].format,
        bits_per_value=group[0].bits_per_value,
        total_bytes=untouched + sum(s.packed_bytes for s in group),
        lowest_qsnr_db=min(levels),
        median_qsnr_db=median(levels),
        highest_qsnr_db=max(levels),
        passing=sum(level >= report.min_qsnr_db for level in levels),
        measured=len(group),
    )
