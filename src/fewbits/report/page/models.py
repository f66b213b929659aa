"""The page of models that were cast to formats, and trained in them."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence

from fewbits.evidence import Evidence
from fewbits.fronts import pareto_front
from fewbits.records import LayerScore, Provenance, TaskScore
from fewbits.report import quantities as q
from fewbits.report.columns.tasks import task_columns
from fewbits.report.judgement import (
    by_task,
    evidence_of,
    left_wide_sentence,
    metric_of,
    narrowest_sentence,
    quality,
)
from fewbits.report.page.axes import difference_axis
from fewbits.report.page.figures import Cells, Dot, Series, dots, heat_map
from fewbits.report.page.front import FRONT_SIGNS, front_series, not_drawn
from fewbits.report.page.markup import Block, Commands, Paragraph, Plot, Section, Sign, Table, page


def tasks_page(
    scores: Sequence[TaskScore],
    provenance: Provenance,
    *,
    base_command: str | Callable[[str], str] = "fewbits compare",
) -> str:
    """Write the page of models that were cast: per task a plot by format, a table and a heat map by layer.

    Args:
        scores: At least one; each task gets its own part of the page.
        provenance: The command and versions that the foot of the page repeats.
        base_command: The command with the options that all rows share, or a function that returns it for a
            format; a row adds what it measures alone.

    Raises:
        ArgumentError: There are no scores.
        MissingDependencyError: Plotly or Jinja2 is not installed.
    """

    def again(score: TaskScore) -> str:
        base = base_command if isinstance(base_command, str) else base_command(score.format)
        if score.samples != "seeds":
            return f"{base} --formats {shlex.quote(score.format)}"
        if ":" in score.task:  # MODULE:FUNCTION, which has one seed
            return f"{base} --model {shlex.quote(score.task)} --formats {shlex.quote(score.format)}"
        seeds = f"--seeds {len(score.values)}" + (" --train" if score.trained else "")
        return f"{base} --task {shlex.quote(score.task)} --formats {shlex.quote(score.format)} {seeds}"

    parts = [_task(i, task, group, again) for i, (task, group) in enumerate(by_task(scores).items())]
    lead = "Models trained in FP32 whose weights and activations were cast to each format without retraining."
    if scores[0].samples != "seeds":
        lead = f"A model whose weights were cast to each format, by the method {scores[0].method}."
    if scores[0].trained:
        lead += " Beside them, models trained in each format from scratch."
    return page("What narrow formats save and cost", lead, parts, provenance)


def _task(number: int, task: str, scores: Sequence[TaskScore], again: Callable[[TaskScore], str]) -> Section:
    metric = metric_of(scores[0])
    better = "higher" if metric.higher_is_better else "lower"
    blocks: list[Block] = [
        Paragraph(f"{q.capital(metric.heading)}, on {_data(scores[0])}; {better} is better."),
        Paragraph(evidence_of(scores)),
        Paragraph(narrowest_sentence(scores), "finding"),
        *([Paragraph(left_wide_sentence(scores))] if scores[0].left_wide else []),
        *_formats_plot(number, task, scores),
        Table(f"Task {task} by format", task_columns(scores), scores),
        Commands([(s.format, again(s)) for s in scores]),
        *_layers_plot(number, task, scores),
    ]
    return Section(f"Task: {task}", blocks)


def _formats_plot(number: int, task: str, scores: Sequence[TaskScore]) -> list[Plot]:
    metric = metric_of(scores[0])
    # FP32 is the line at zero: a row of its own would say nothing.
    drawn = [s for s in scores if s.format != "fp32"]
    if not drawn:
        return []
    cast = [_dot(i, s, s.evidence, "difference from FP32") for i, s in enumerate(drawn)]
    trained = [
        _dot(i, s, s.trained_evidence, "trained in it") for i, s in enumerate(drawn) if s.trained_evidence
    ]
    reach = [v for dot in (*cast, *trained) for v in (dot.low, dot.value, dot.high)]
    margins = sorted(m for s in scores if (m := s.evidence.margin) > 0)
    axis = difference_axis(metric.difference_unit, reach, margins[len(margins) // 2] if margins else 0.0)
    front = pareto_front([(s.bits_per_value, quality(s)) for s in drawn])
    figure = dots(
        [f"{s.format}, {q.bits(s.bits_per_value)}" for s in drawn],
        [*front_series(cast, front), Series(trained, "curve-1", "diamond-open")],
        axis if metric.higher_is_better else axis.reversed(),
        reference=0.0,
        front=[cast[i] for i in front],
    )
    about = f"Task {task}: each format with its bits per value; right is better, the dotted line is FP32. "
    if len(scores[0].values) > 1:
        about += f"Bars are 95 % intervals over paired {scores[0].samples}; "
        about += "one that crosses the dotted line is no evidence. "
    about += not_drawn([s.format for s in drawn if not math.isfinite(s.difference)])
    title = f"{q.capital(metric.title)} minus that of FP32"
    signs = [*FRONT_SIGNS, *([Sign("trained in it from scratch", "curve-1", "diamond")] if trained else [])]
    return [Plot(f"formats-{number}", title, figure, about, signs)]


def _dot(row: int, score: TaskScore, evidence: Evidence, label: str) -> Dot:
    metric = metric_of(score)
    hover = (
        f"{q.bits(score.bits_per_value)} bits per value, {q.size(score.model_bytes)}",
        f"{metric.title}: {q.plain(score.mean, metric.digits)} {metric.unit}",
        f"{label}: {q.signed(evidence.mean, metric.digits)}",
        f"weight QSNR: {q.decibels(score.weight_qsnr_db)} dB",
        *(() if math.isnan(db := score.activation_qsnr_db) else (f"activation QSNR: {q.decibels(db)} dB",)),
    )
    return Dot(row, evidence.mean, hover, evidence.low, evidence.high)


def _layers_plot(number: int, task: str, scores: Sequence[TaskScore]) -> list[Plot]:
    """Return the heat map of one task; formats in which every layer is exact are named instead of drawn."""
    by_name = {(s.format, layer.layer): layer for s in scores for layer in s.layers}
    rows = list(dict.fromkeys(layer for _, layer in by_name))
    columns = [s.format for s in scores if any(_inexact(layer) for layer in s.layers)]
    if not columns:
        return []

    def cells(title: str, read: Callable[[LayerScore], float]) -> Cells:
        layers = [[by_name.get((column, row)) for column in columns] for row in rows]
        return Cells(title, [[None if layer is None else read(layer) for layer in line] for line in layers])

    drawn = [cells("weight", lambda s: s.weight_qsnr_db)]
    choices = ["weights"]
    if not all(math.isnan(layer.activation_qsnr_db) for layer in by_name.values()):
        drawn.append(cells("activation", lambda s: s.activation_qsnr_db))
        choices.append("activations")
    figure = heat_map(rows, columns, drawn)
    about = f"Task {task}: brighter is better."
    exact = [s.format for s in scores if s.layers and s.format not in columns]
    about += f" Exact in every layer and not drawn: {', '.join(exact)}." if exact else ""
    named = tuple(choices) if len(choices) > 1 else ()
    return [Plot(f"layers-{number}", "QSNR of each layer in each format, dB", figure, about, choices=named)]


def _inexact(layer: LayerScore) -> bool:
    return layer.weight_qsnr_db < math.inf or layer.activation_qsnr_db < math.inf


def _data(score: TaskScore) -> str:
    return "held-out data" if score.samples == "seeds" else f"{len(score.values)} {score.samples} of the data"
