"""The columns about matrices in several formats."""

from __future__ import annotations

import math

from fewbits.records import MatrixScore
from fewbits.report import quantities as q
from fewbits.report.columns.column import BITS, FLUSHED, FORMAT, SATURATED, Column


def _worsening(score: MatrixScore) -> float:
    """Return the condition over that in FP64; NaN where one of them is singular."""
    known = 0 < score.condition_fp64 < math.inf and score.condition < math.inf
    return score.condition / score.condition_fp64 if known else math.nan


def _times(ratio: float) -> str:
    return "-" if math.isnan(ratio) else f"{ratio:.3g}"


MATRIX_COLUMNS: list[Column[MatrixScore]] = [
    Column("format", "format", FORMAT, lambda s: q.visible(s.format), lambda s: s.format, is_name=True),
    Column("bits per value", "bits/\nvalue", BITS,
           lambda s: q.bits(s.bits_per_value), lambda s: s.bits_per_value),
    Column("size of values", "size of\nvalues", "Bytes of the stored entries without their indices.",
           lambda s: q.size(s.values_bytes), lambda s: s.values_bytes, spare=1),
    Column("Frobenius error", "Frobenius\nerror", "Norm of A - Q(A) over the norm of A.",
           lambda s: q.relative(s.frobenius_error), lambda s: s.frobenius_error),
    Column("largest relative entry error", "largest\nrelative\nerror",
           "Over the nonzero entries; 1 means that an entry vanished.",
           lambda s: q.relative(s.error.max_relative_error), lambda s: s.error.max_relative_error, spare=2),
    Column("flushed (%)", "flush\n%", FLUSHED,
           lambda s: q.percent(s.error.flushed_fraction), lambda s: s.error.flushed_fraction, spare=3),
    Column("saturated (%)", "sat.\n%", SATURATED,
           lambda s: q.percent(s.error.saturated_fraction), lambda s: s.error.saturated_fraction, spare=4),
    Column("condition", "condition",
           "1-norm condition number of the matrix in this format; an estimate beyond 512 rows.",
           lambda s: q.condition(s.condition), lambda s: s.condition),
    Column("times that of FP64", "times\nFP64", "Its condition number over that of the matrix as given.",
           lambda s: _times(_worsening(s)), _worsening),
    Column("note", "note", "What to watch.", lambda s: q.visible(s.note), lambda s: s.note, is_name=True),
]  # fmt: skip
