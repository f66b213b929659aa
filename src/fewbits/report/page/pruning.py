"""The page of pruned models."""

from __future__ import annotations

from collections.abc import Sequence

from fewbits.records import Provenance, PrunedModel
from fewbits.report.columns.pruning import (
    STAGE_COLUMNS,
    about,
    evidence_of,
    layer_columns,
    layers,
    metric_of,
    stages,
    total,
)
from fewbits.report.page.axes import linear_axis
from fewbits.report.page.differences import Compared, differences_plot
from fewbits.report.page.figures import Dot, Series, dots
from fewbits.report.page.markup import Block, Paragraph, Plot, Section, Table, page

_MOST_DRAWN = 60  # tensors that still read as one picture


def prune_page(models: Sequence[PrunedModel], provenance: Provenance) -> str:
    """Write the page of pruned models.

    Args:
        models: At least one; each gets its own part of the page.
        provenance: The command and versions that the foot of the page repeats.

    Raises:
        MissingDependencyError: Plotly or Jinja2 is not installed.
    """
    parts = [Section(model.model, _blocks(number, model)) for number, model in enumerate(models)]
    lead = f"Models whose weights were pruned to {models[0].report.pattern}."
    return page("What structured sparsity keeps and costs", lead, parts, provenance)


def _blocks(number: int, model: PrunedModel) -> list[Block]:
    blocks: list[Block] = []
    if model.stages:
        blocks += [Paragraph(about(model)), Paragraph(evidence_of(model)), *_stages_plot(number, model)]
        blocks += [Table("Stages", STAGE_COLUMNS, stages(model))]
    blocks += [_kept_plot(number, model), Table("Tensors", layer_columns(model), layers(model))]
    blocks += [Paragraph(total(model))]
    return [*blocks, *(Paragraph(f"left alone: {name}, {why}") for name, why in model.report.left_alone)]


def _stages_plot(number: int, model: PrunedModel) -> list[Plot]:
    """Return how good the model is at each stage after the first, which is dense."""
    dense = model.stages[0].values
    rows = [
        Compared(
            f"{stage.stage}, {stage.recipe}",
            evidence,
            [value - base for value, base in zip(stage.values, dense, strict=True)],
        )
        for stage, evidence in list(zip(model.stages, model.evidence, strict=True))[1:]
    ]
    return differences_plot(f"stages-{number}", rows, metric_of(model), "the dense model")


def _kept_plot(number: int, model: PrunedModel) -> Plot:
    largest = sorted(model.report.pruned, key=lambda t: -t.values)[:_MOST_DRAWN]
    rows = [
        Dot(i, 100 * t.kept_magnitude, (f"{100 * t.kept_magnitude:.2f} %",)) for i, t in enumerate(largest)
    ]
    which = f"the {len(rows)} largest tensors" if len(model.report.pruned) > len(rows) else "each tensor"
    text = f"Of the sum of magnitudes of {which}, what is left; right is better."
    figure = dots([t.tensor for t in largest], [Series(rows)], linear_axis("%"))
    return Plot(f"kept-{number}", "Magnitude that is left", figure, text)
