"""A pruned model as tables in the terminal and as a page: its stages, and every tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.console import Group, RenderableType
from rich.text import Text

from fewbits.evidence import Evidence
from fewbits.records import Provenance, PrunedModel, PrunedProduct, PrunedTensor, PruneStage
from fewbits.report import quantities as q
from fewbits.report.axes import linear_axis
from fewbits.report.columns import Column
from fewbits.report.figures import strips
from fewbits.report.judgement import METRICS, evidence_sentence, verdict
from fewbits.report.markup import figure, glossary, page, paragraph, section, table
from fewbits.report.table import Sheet, heading

_MOST_DRAWN = 60  # tensors that still read as one picture


@dataclass(frozen=True)
class _Stage:
    """A stage with what it is compared with."""

    stage: PruneStage
    evidence: Evidence  # of the difference from dense
    digits: int
    higher_is_better: bool


@dataclass(frozen=True)
class _Layer:
    """A tensor, with its products where they were measured."""

    tensor: PrunedTensor
    product: PrunedProduct | None


_STAGES: list[Column[_Stage]] = [
    Column("stage", "stage", "What was done to the model.", lambda s: s.stage.stage, lambda s: s.stage.stage),
    Column("recipe", "recipe", "By which it was trained last.", lambda s: s.stage.recipe,
           lambda s: s.stage.recipe),
    Column("metric", "metric", "Held-out; mean over seeds.",
           lambda s: q.plain(fmean(s.stage.values), s.digits), lambda s: fmean(s.stage.values)),
    Column("difference", "less\ndense", "Mean over seeds, each against its own dense model.",
           lambda s: q.signed(s.evidence.mean, s.digits), lambda s: s.evidence.mean,
           lambda s: verdict(s.evidence, higher_is_better=s.higher_is_better)),
    Column("95 % interval (+-)", "95 %\n+-", "The difference is known this well, from paired seeds.",
           lambda s: q.margin(s.evidence.margin, s.digits), lambda s: s.evidence.margin),
    Column("mask flips (%)", "mask\nflips\n%", "Entries of the masks that a step changed; mean over steps.",
           lambda s: q.percent(s.stage.flip_rate), lambda s: s.stage.flip_rate),
]  # fmt: skip

_LAYERS: list[Column[_Layer]] = [
    Column("tensor", "tensor", "Its name.", lambda r: q.visible(r.tensor.tensor), lambda r: r.tensor.tensor),
    Column("shape", "shape", "Extents; sorts by values.", lambda r: q.shape(r.tensor.shape),
           lambda r: r.tensor.values),
    Column("density (%)", "density\n%", "Values that are not zero.", lambda r: q.percent(r.tensor.density),
           lambda r: r.tensor.density),
    Column("kept magnitude (%)", "kept\nmagn.\n%", "Sum of magnitudes that is left, of that before.",
           lambda r: q.percent(r.tensor.kept_magnitude), lambda r: r.tensor.kept_magnitude),
]  # fmt: skip

_PRODUCTS: list[Column[_Layer]] = [
    Column("stored as", "stored\nas", "Format of the values.",
           lambda r: r.product.format if r.product else "-", lambda r: r.product.format if r.product else ""),
    Column("dense size", "dense", "Bytes of all values.",
           lambda r: _size(_of(r, "dense_bytes")), lambda r: _of(r, "dense_bytes")),
    Column("compressed size", "compr.", "Bytes of the kept values and where they are.",
           lambda r: _size(_of(r, "sparse_bytes")), lambda r: _of(r, "sparse_bytes")),
    Column("dense product (us)", "dense\nus", "Microseconds for the product with one vector.",
           lambda r: _micro(_of(r, "dense_seconds")), lambda r: _of(r, "dense_seconds")),
    Column("compressed product (us)", "compr.\nus", "The same from the compressed values.",
           lambda r: _micro(_of(r, "sparse_seconds")), lambda r: _of(r, "sparse_seconds")),
]  # fmt: skip


def prune_table(model: PrunedModel) -> RenderableType:
    """Lay out the stages, where there are any, one row per tensor, and what was left alone."""
    parts: list[RenderableType] = []
    if model.stages:
        parts += [Sheet(heading(model.model, _about(model)), _STAGES, _stages(model)), Text(_told(model))]
    parts += [
        Sheet(heading(model.model, f"pruned to {model.report.pattern}"), _columns(model), _layers(model))
    ]
    parts += [Text(f"left alone: {q.visible(name)}, {why}") for name, why in model.report.left_alone]
    return Group(*parts, Text("\n" + _total(model) + "\n", style="bold"))


def prune_page(models: Sequence[PrunedModel], provenance: Provenance) -> str:
    """Write the page of pruned models.

    Args:
        models: At least one; each gets its own part of the page.
        provenance: The command and versions that the foot of the page repeats.
    """
    parts = []
    for number, model in enumerate(models):
        body = ""
        if model.stages:
            body += paragraph(_about(model)) + paragraph(_told(model).strip()) + _stages_plot(number, model)
            body += table("Stages", _STAGES, _stages(model)) + glossary(_STAGES)
        columns = _columns(model)
        body += _kept_plot(number, model)
        body += table("Tensors", columns, _layers(model)) + glossary(columns) + paragraph(_total(model))
        body += "".join(paragraph(f"left alone: {name}, {why}") for name, why in model.report.left_alone)
        parts.append(section(model.model, body))
    lead = f"Models whose weights were pruned to {models[0].report.pattern}."
    return page("What structured sparsity keeps and costs", lead, "".join(parts), provenance)


def _stages_plot(number: int, model: PrunedModel) -> str:
    metric = METRICS[model.metric]
    rows = [(f"{s.stage}, {s.recipe}", s.values) for s in model.stages]
    x = linear_axis(
        f"{metric.title}, {metric.unit}", [v for _, values in rows for v in values], least_span=0.0
    )
    about = f"{metric.title.capitalize()} at each stage"
    about += ": one circle for each seed, a dot for their mean." if len(model.seeds) > 1 else "."
    return figure(f"stages-{number}", strips(rows, x, metric.unit), about=about)


def _kept_plot(number: int, model: PrunedModel) -> str:
    largest = sorted(model.report.pruned, key=lambda t: -t.values)[:_MOST_DRAWN]
    rows = [(t.tensor, (100 * t.kept_magnitude,)) for t in largest]
    x = linear_axis("kept magnitude, %", [v for _, values in rows for v in values])
    which = f"the {len(rows)} largest tensors" if len(model.report.pruned) > len(rows) else "each tensor"
    about = f"Of the sum of magnitudes of {which}, what is left; right is better."
    return figure(f"kept-{number}", strips(rows, x, "%"), about=about)


def _about(model: PrunedModel) -> str:
    better = "lower is better" if model.lower_is_better else "higher is better"
    seeds = "1 seed" if len(model.seeds) == 1 else f"{len(model.seeds)} seeds"
    retrained = any(s.stage in ("retrained", "from scratch") for s in model.stages)
    mask = f", mask {model.schedule}" if retrained else ""
    return f"{model.steps} steps, {seeds}{mask}; {model.metric}: {better}"


def _stages(model: PrunedModel) -> list[_Stage]:
    metric = METRICS[model.metric]
    pairs = zip(model.stages, model.evidence, strict=True)
    return [_Stage(stage, found, metric.digits, not model.lower_is_better) for stage, found in pairs]


def _told(model: PrunedModel) -> str:
    """Say what the marks mean; the first stage is what the others are compared with."""
    later = list(zip(model.stages, model.evidence, strict=True))[1:]
    return evidence_sentence([(f"{s.stage} {s.recipe}", found) for s, found in later]) + "\n"


def _layers(model: PrunedModel) -> list[_Layer]:
    measured = {p.tensor: p for p in model.products}
    return [_Layer(t, measured.get(t.tensor)) for t in model.report.pruned]


def _columns(model: PrunedModel) -> list[Column[_Layer]]:
    return _LAYERS + (_PRODUCTS if model.products else [])


def _total(model: PrunedModel) -> str:
    values, tensors = sum(t.values for t in model.report.pruned), len(model.report.pruned)
    count = "1 tensor" if tensors == 1 else f"{tensors} tensors"
    text = f"{count}, {values} values, {q.percent(model.report.density)} % of them kept"
    if model.products:
        dense, sparse = (sum(getattr(p, f"{k}_bytes") for p in model.products) for k in ("dense", "sparse"))
        text += f"; {q.size(dense)} dense, {q.size(sparse)} compressed"
    return text


def _of(layer: _Layer, quantity: str) -> float:
    return math.nan if layer.product is None else float(getattr(layer.product, quantity))


def _size(count: float) -> str:
    return "-" if math.isnan(count) else q.size(count)


def _micro(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{1e6 * seconds:.1f}"
