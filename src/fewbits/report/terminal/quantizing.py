"""The layers of a model whose weights were chosen, for the terminal."""

from __future__ import annotations

import math

from rich.console import Group
from rich.text import Text

from fewbits.records import QuantizedLayer, QuantizeReport
from fewbits.report import quantities as q
from fewbits.report.columns.column import Column
from fewbits.report.terminal.sheet import Heading, Sheet, Wrapped

_COLUMNS: list[Column[QuantizedLayer]] = [
    Column("layer", "layer", "Its name in the model.", lambda x: q.visible(x.layer), lambda x: x.layer,
           is_name=True),
    Column("format", "format", "Of its weight.", lambda x: q.visible(x.format or "kept as it is"),
           lambda x: x.format or "", is_name=True),
    Column("vectors", "vectors", "Inputs that it was calibrated on.", lambda x: str(x.vectors),
           lambda x: x.vectors, spare=1),
    Column("rounded (dB)", "rounded\ndB", "Error of the layer's outputs with the weight rounded to nearest.",
           lambda x: _decibels(x.rounding_loss), lambda x: x.rounding_loss),
    Column("chosen (dB)", "chosen\ndB", "The same with the chosen weight: lower is better.",
           lambda x: _decibels(x.loss), lambda x: x.loss),
]  # fmt: skip


def quantize_table(report: QuantizeReport) -> Group:
    """Lay out one row per layer in the order in which data flows, and what was left below."""
    heading = Heading("error of each layer's outputs", f"{report.method}, scales by {report.scale}")
    left = [Wrapped(f"{q.visible(x.layer)}: {x.reason}") for x in report.layers if x.reason]
    return Group(Sheet(heading, _COLUMNS, report.layers), Text(), *left, *([Text()] if left else []))


def _decibels(loss: float) -> str:
    if math.isnan(loss):
        return "-"
    return q.decibels(10 * math.log10(loss) if loss > 0 else -math.inf)
