"""A pruned model as tables in the terminal: its stages, and every tensor."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from fewbits.records import PrunedModel
from fewbits.report.columns.pruning import (
    STAGE_COLUMNS,
    about,
    evidence_of,
    layer_columns,
    layers,
    stages,
    total,
)
from fewbits.report.terminal.sheet import Heading, Sheet, Wrapped


def prune_table(model: PrunedModel) -> RenderableType:
    """Lay out the stages, where there are any, one row per tensor, and what was left alone."""
    parts: list[RenderableType] = []
    if model.stages:
        parts += [Sheet(Heading(model.model, about(model)), STAGE_COLUMNS, stages(model))]
        parts += [Wrapped(evidence_of(model)), Text()]
    heading = Heading(model.model, f"pruned to {model.report.pattern}")
    parts += [Sheet(heading, layer_columns(model), layers(model))]
    parts += [Wrapped(f"left alone: {name}, {why}") for name, why in model.report.left_alone]
    return Group(*parts, Text(), Wrapped(total(model), "bold"), Text())
