"""Codecs compared in training, and predicted steps, as tables in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from fewbits.records import CodecComparison, Prediction
from fewbits.report.columns.codecs import (
    about_codecs,
    by_bytes,
    codec_columns,
    evidence_of_codecs,
    fastest_sentence,
    predicted_from,
)
from fewbits.report.columns.scaling import SCALE_COLUMNS, about_prediction, limit_sentence, ranked
from fewbits.report.terminal.sheet import Heading, Sheet, Wrapped


def codecs_table(comparisons: Sequence[CodecComparison]) -> Group:
    """Lay out one table per task, FP32 first and then from few bytes to many."""
    parts: list[RenderableType] = []
    for comparison in comparisons:
        heading = Heading(comparison.task, about_codecs(comparison))
        parts += [
            Sheet(heading, codec_columns(comparison), by_bytes(comparison.scores)),
            Wrapped(evidence_of_codecs(comparison)),
            Wrapped(predicted_from(comparison)),
            Wrapped(fastest_sentence(comparison), "bold"),
            Text(),
        ]
    return Group(*parts)


def scale_table(prediction: Prediction) -> Group:
    """Lay out a row for each codec and number of ranks, and below where each codec stops paying."""
    heading = Heading("Predicted steps", f"{prediction.gigabits:g} Gbit/s")
    limits = [Wrapped(limit_sentence(limit, prediction)) for limit in prediction.limits]
    sheet = Sheet(heading, SCALE_COLUMNS, ranked(prediction))
    return Group(sheet, Wrapped(about_prediction(prediction)), *limits, Text())
