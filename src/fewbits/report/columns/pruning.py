"""The columns about a pruned model: its stages, and every tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

from fewbits.evidence import Evidence
from fewbits.records import PrunedModel, PrunedProduct, PrunedTensor, PruneStage
from fewbits.report import quantities as q
from fewbits.report.columns.column import Column
from fewbits.report.judgement import Metric, evidence_sentence, metric_named, verdict


@dataclass(frozen=True)
class ComparedStage:
    """A stage with what it is compared with."""

    stage: PruneStage
    evidence: Evidence  # of the difference from dense
    digits: int
    higher_is_better: bool


@dataclass(frozen=True)
class Layer:
    """A tensor, with its products where they were measured."""

    tensor: PrunedTensor
    product: PrunedProduct | None


STAGE_COLUMNS: list[Column[ComparedStage]] = [
    Column("stage", "stage", "What was done to the model.", lambda s: s.stage.stage, lambda s: s.stage.stage,
           is_name=True),
    Column("recipe", "recipe", "Recipe of its last training.", lambda s: s.stage.recipe,
           lambda s: s.stage.recipe, is_name=True),
    Column("metric", "metric", "On held-out data; mean over seeds.",
           lambda s: q.plain(fmean(s.stage.values), s.digits), lambda s: fmean(s.stage.values)),
    Column("difference", "minus\ndense", "Mean over seeds, each minus its own dense model.",
           lambda s: q.signed(s.evidence.mean, s.digits), lambda s: s.evidence.mean,
           lambda s: verdict(s.evidence, higher_is_better=s.higher_is_better)),
    Column("95 % interval (+-)", "95 %\n+-", "Half the interval of the difference, from paired seeds.",
           lambda s: q.margin(s.evidence.margin, s.digits), lambda s: s.evidence.margin),
    Column("mask flips (%)", "mask\nflips\n%", "Entries of the masks that a step changed; mean over steps.",
           lambda s: q.percent(s.stage.flip_rate), lambda s: s.stage.flip_rate, spare=1),
]  # fmt: skip

_TENSORS: list[Column[Layer]] = [
    Column("tensor", "tensor", "Name of the tensor.",
           lambda r: q.visible(r.tensor.tensor), lambda r: r.tensor.tensor, is_name=True),
    Column("shape", "shape", "Extents; sorts by values.", lambda r: q.shape(r.tensor.shape),
           lambda r: r.tensor.values, spare=1),
    Column("axis", "axis", "Axis along which groups lie; the first is 0.", lambda r: str(r.tensor.axis),
           lambda r: r.tensor.axis, spare=1),
    Column("density (%)", "density\n%", "Values that are not zero.", lambda r: q.percent(r.tensor.density),
           lambda r: r.tensor.density),
    Column("kept magnitude (%)", "kept\nmagn.\n%", "Sum of magnitudes after pruning, of that before.",
           lambda r: q.percent(r.tensor.kept_magnitude), lambda r: r.tensor.kept_magnitude),
]  # fmt: skip

_PRODUCTS: list[Column[Layer]] = [
    Column("stored as", "stored\nas", "Format of the values.",
           lambda r: r.product.format if r.product else "-", lambda r: r.product.format if r.product else "",
           is_name=True),
    Column("dense size", "dense", "Bytes of all values.",
           lambda r: _size(_of(r, "dense_bytes")), lambda r: _of(r, "dense_bytes"), spare=3),
    Column("compressed size", "compr.", "Bytes of the kept values and where they are.",
           lambda r: _size(_of(r, "sparse_bytes")), lambda r: _of(r, "sparse_bytes")),
    Column("dense product (us)", "dense\nus", "Microseconds for the product with one vector.",
           lambda r: _micro(_of(r, "dense_seconds")), lambda r: _of(r, "dense_seconds"), spare=2),
    Column("compressed product (us)", "compr.\nus", "The same from the compressed values.",
           lambda r: _micro(_of(r, "sparse_seconds")), lambda r: _of(r, "sparse_seconds")),
]  # fmt: skip


def metric_of(model: PrunedModel) -> Metric:
    """Return how the metric of the stages is written."""
    return metric_named(model.metric, lower_is_better=model.lower_is_better)


def about(model: PrunedModel) -> str:
    """Say how the stages were trained and measured, in a line."""
    better = "lower is better" if model.lower_is_better else "higher is better"
    seeds = "1 seed" if len(model.seeds) == 1 else f"{len(model.seeds)} seeds"
    retrained = any(s.stage in ("retrained", "from scratch") for s in model.stages)
    mask = f", mask {model.schedule}" if retrained else ""
    return f"{model.steps} steps, {seeds}{mask}; {model.metric}: {better}"


def stages(model: PrunedModel) -> list[ComparedStage]:
    """Return the rows of `STAGE_COLUMNS`."""
    metric = metric_of(model)
    pairs = zip(model.stages, model.evidence, strict=True)
    return [
        ComparedStage(stage, evidence, metric.digits, not model.lower_is_better) for stage, evidence in pairs
    ]


def evidence_of(model: PrunedModel) -> str:
    """Say what the marks mean; the first stage is what the others are compared with."""
    later = list(zip(model.stages, model.evidence, strict=True))[1:]
    return evidence_sentence([(f"{s.stage} {s.recipe}", evidence) for s, evidence in later])


def layers(model: PrunedModel) -> list[Layer]:
    """Return the rows of `layer_columns`."""
    measured = {p.tensor: p for p in model.products}
    return [Layer(t, measured.get(t.tensor)) for t in model.report.pruned]


def layer_columns(model: PrunedModel) -> list[Column[Layer]]:
    """Return the columns about tensors, with those of their products where they were measured."""
    return _TENSORS + (_PRODUCTS if model.products else [])


def total(model: PrunedModel) -> str:
    """Say what all pruned tensors together hold."""
    values, tensors = sum(t.values for t in model.report.pruned), len(model.report.pruned)
    count = "1 tensor" if tensors == 1 else f"{tensors} tensors"
    text = f"{count}, {values} values, {q.percent(model.report.density)} % of them kept"
    if model.products:
        dense, sparse = (sum(getattr(p, f"{k}_bytes") for p in model.products) for k in ("dense", "sparse"))
        text += f"; {q.size(dense)} dense, {q.size(sparse)} compressed"
    return text


def _of(layer: Layer, quantity: str) -> float:
    return math.nan if layer.product is None else float(getattr(layer.product, quantity))


def _size(count: float) -> str:
    return "-" if math.isnan(count) else q.size(count)


def _micro(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{1e6 * seconds:.1f}"
