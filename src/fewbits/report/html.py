"""Pages: one HTML file per report that opens offline, with plots, sortable tables and every command line."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence

from fewbits.records import CheckpointReport, LayerScore, MatrixScore, Provenance, TaskScore
from fewbits.report import quantities as q
from fewbits.report.axes import Axis, difference_axis, linear_axis, log2_axis, log10_axis
from fewbits.report.columns import (
    MATRIX_COLUMNS,
    REASON,
    TOTAL_COLUMNS,
    proposal_columns,
    qsnr_columns,
    task_columns,
)
from fewbits.report.figures import Cells, Point, heat_map, is_drawn, scatter
from fewbits.report.judgement import (
    by_matrix,
    by_task,
    evidence_of,
    metric_of,
    narrowest_sentence,
    quality,
    totals_sentence,
)
from fewbits.report.layers import by_kind
from fewbits.report.markup import chooser, commands, figure, glossary, legend, page, paragraph, section, table
from fewbits.report.totals import FormatTotal, format_totals

_LARGEST_DRAWN = 60  # rows of a heat map that still read as one picture
_LARGEST_LISTED = 1000  # rows of a table that a browser still sorts at once


def tasks_page(
    scores: Sequence[TaskScore], provenance: Provenance, *, base_command: str = "fewbits compare"
) -> str:
    """Write the page of models that were cast: per task a scatter, a table and a heat map by layer.

    Args:
        scores: At least one; each task gets its own part of the page.
        provenance: The command and versions that the foot of the page repeats.
        base_command: The command with the options that all rows share; a row adds what it measures alone.

    Raises:
        ArgumentError: There are no scores, or one has an unknown metric.
        MissingDependencyError: Plotly is not installed.
    """

    def again(score: TaskScore) -> str:
        seeds = f"--seeds {len(score.values)}" + (" --train" if score.trained else "")
        return (
            f"{base_command} --tasks {shlex.quote(score.task)} --formats {shlex.quote(score.format)} {seeds}"
        )

    parts = [_task(i, task, group, again) for i, (task, group) in enumerate(by_task(scores).items())]
    lead = "Models trained in FP32 whose weights and activations were cast to each format without retraining."
    if scores[0].trained:
        lead += " Beside them, models trained in each format from scratch."
    return page("What narrow formats save and cost", lead, "".join(parts), provenance)


def _task(number: int, task: str, scores: Sequence[TaskScore], again: Callable[[TaskScore], str]) -> str:
    metric = metric_of(scores[0])
    better = "higher" if metric.higher_is_better else "lower"
    body = paragraph(f"{metric.title.capitalize()}, {metric.unit}, on held-out data; {better} is better.")
    body += paragraph(evidence_of(scores)) + paragraph(narrowest_sentence(scores), "finding")
    body += _task_scatter(number, task, scores)
    body += table(f"Task {task} by format", task_columns(scores), scores)
    body += glossary(task_columns(scores)) + commands([(s.format, again(s)) for s in scores])
    return section(f"Task: {task}", body + _layers(number, task, scores))


def _task_scatter(number: int, task: str, scores: Sequence[TaskScore]) -> str:
    metric = metric_of(scores[0])
    # FP32 is the line at zero; a point of its own would take a third of the width for nothing.
    points = [_task_point(s) for s in scores if s.format != "fp32"]
    if not points:
        return ""
    reach = [v for p in points for v in (p.low, p.y, p.high)]
    margins = sorted(m for s in scores if (m := s.evidence.margin) > 0)
    unit = margins[len(margins) // 2] if margins else 0.0
    y = difference_axis(f"{metric.title}<br>minus FP32, {metric.difference_unit}", reach, unit)
    plot = scatter(points, _bits_axis(points), y if metric.higher_is_better else y.turned(), floor=0.0)
    about = (
        f"Task {task}: difference in {metric.title} from FP32 (dotted) against bits per value; up is better. "
    )
    if len(scores[0].values) > 1:
        about += (
            "Bars are 95 % intervals over paired seeds; one that crosses the dotted line is no evidence. "
        )
    return figure(f"scatter-{number}", plot, about=about + _not_drawn(points), above=legend())


def _task_point(score: TaskScore) -> Point:
    metric = metric_of(score)
    lines = (
        f"{q.bits(score.bits_per_value)} bits per value, {q.size(score.model_bytes)}",
        f"{metric.title}: {q.plain(score.mean, metric.digits)} {metric.unit}",
        f"difference from FP32: {q.signed(score.difference, metric.digits)}",
        f"weight QSNR: {q.decibels(score.weight_qsnr_db)} dB",
        f"activation QSNR: {q.decibels(score.activation_qsnr_db)} dB",
    )
    x, y = score.bits_per_value, score.difference
    return Point(score.format, x, y, score.evidence.low, score.evidence.high, quality(score), lines)


def _bits_axis(points: Sequence[Point]) -> Axis:
    return log2_axis("bits per value, scales counted", [p.x for p in points], lambda v: f"{v:g}")


def _not_drawn(points: Sequence[Point]) -> str:
    names = [p.name for p in points if not is_drawn(p)]
    return f"Without a finite value and so not drawn: {', '.join(names)}." if names else ""


def _layers(number: int, task: str, scores: Sequence[TaskScore]) -> str:
    """Write the heat map of one task; formats in which every layer is exact are named instead of drawn."""
    found = {(s.format, layer.layer): layer for s in scores for layer in s.layers}
    rows = list(dict.fromkeys(layer for _, layer in found))
    columns = [s.format for s in scores if any(_inexact(layer) for layer in s.layers)]
    if not columns:
        return ""

    def cells(title: str, read: Callable[[LayerScore], float]) -> Cells:
        layers = [[found.get((column, row)) for column in columns] for row in rows]
        return Cells(title, [[None if layer is None else read(layer) for layer in line] for line in layers])

    plot = heat_map(rows, columns, [
        cells("weight", lambda s: s.weight_qsnr_db), cells("activation", lambda s: s.activation_qsnr_db),
    ])  # fmt: skip
    about = f"Task {task}: QSNR of each layer in each format, in dB; brighter is better."
    exact = [s.format for s in scores if s.layers and s.format not in columns]
    about += f" Exact in every layer and not drawn: {', '.join(exact)}." if exact else ""
    above = chooser(f"layers-{number}", ("weights", "activations"))
    return figure(f"layers-{number}", plot, about=about, above=above)


def _inexact(layer: LayerScore) -> bool:
    return layer.weight_qsnr_db < math.inf or layer.activation_qsnr_db < math.inf


def checkpoint_page(
    report: CheckpointReport, provenance: Provenance, *, base_command: str = "fewbits compare"
) -> str:
    """Write the page of a checkpoint: size against QSNR per format, a heat map by tensor, and the proposals.

    Arguments and errors are those of `tasks_page`.
    """
    again = f"{base_command} {shlex.quote(report.path)} --formats"
    totals = format_totals(report)
    body = paragraph(totals_sentence(report), "finding") + _totals_scatter(report, totals)
    body += table("Whole checkpoint by format", TOTAL_COLUMNS, totals)
    body += glossary(TOTAL_COLUMNS) + commands(
        [(t.format, f"{again} {shlex.quote(t.format)}") for t in totals]
    )
    parts = section("Whole checkpoint in one format", body) + section("Tensor by tensor", _tensors(report))
    return page("What narrow formats do to a checkpoint", report.path, parts, provenance)


def _totals_scatter(report: CheckpointReport, totals: Sequence[FormatTotal]) -> str:
    points = [_total_point(total) for total in totals]
    drawn = [p for p in points if is_drawn(p)]
    if not drawn:
        return ""
    x = log2_axis("size of the whole checkpoint", [p.x for p in drawn], q.size, least_gap=0.2)
    reach = [v for p in drawn for v in (p.low, p.y, p.high)]
    y = linear_axis("QSNR of the median tensor, dB", [*reach, report.min_qsnr_db])
    about = (
        "Median QSNR of the tensors against the size of the whole checkpoint in one format; up is better. "
        f"Bars reach from the worst tensor to the best; dotted: the {report.min_qsnr_db:g} dB asked for. "
    )
    exact = [p.name for p in points if p.y == math.inf]
    about += f"Exact in the median tensor and so not drawn: {', '.join(exact)}." if exact else ""
    return figure("totals", scatter(drawn, x, y, floor=report.min_qsnr_db), about=about, above=legend())


def _total_point(total: FormatTotal) -> Point:
    lines = (
        f"{q.bits(total.bits_per_value)} bits per value, {q.size(total.total_bytes)}",
        f"QSNR: median {q.decibels(total.median_qsnr_db)}, worst {q.decibels(total.lowest_qsnr_db)} dB",
        f"{total.passing} of {total.measured} tensors reach the QSNR asked for",
    )
    low, middle, high = total.lowest_qsnr_db, total.median_qsnr_db, total.highest_qsnr_db
    return Point(total.format, total.total_bytes, middle, low, high, middle, lines)


def _tensors(report: CheckpointReport) -> str:
    ordered = sorted(report.tensors, key=lambda t: -t.stored_bytes)
    found = {(s.tensor, s.format): s.error.qsnr_db for s in report.scores}
    formats = [t.format for t in format_totals(report) if t.lowest_qsnr_db < math.inf]
    drawn = [t.tensor for t in ordered if any((t.tensor, f) in found for f in formats)][:_LARGEST_DRAWN]
    body = ""
    if drawn:
        values = [[found.get((tensor, f)) for f in formats] for tensor in drawn]
        about = f"QSNR of the {len(drawn)} largest tensors in each format, in dB; brighter is better."
        plot = heat_map(drawn, formats, [Cells("weight", values)])
        body += figure("tensors", plot, about=about)
    kinds = by_kind(report)
    if len(kinds.tensors) < len(report.tensors):
        rows = sorted(kinds.tensors, key=lambda t: -t.stored_bytes)[:_LARGEST_LISTED]
        body += table("Proposals by kind of layer, QSNR of the worst", proposal_columns(kinds), rows)
    listed = ordered[:_LARGEST_LISTED]
    columns = [*proposal_columns(report), REASON, *qsnr_columns(report)]
    rest = len(ordered) - len(listed)
    left_out = (
        f"The table holds the {len(listed)} largest tensors; --json has the other {rest}." if rest else ""
    )
    body += paragraph(left_out) + table("Proposals and QSNR by tensor, largest first", columns, listed)
    return body + glossary([*proposal_columns(report), REASON])


def matrices_page(
    scores: Sequence[MatrixScore], provenance: Provenance, *, base_command: str = "fewbits compare"
) -> str:
    """Write the page of matrices: for each the error of its entries against bits, and the table.

    Arguments and errors are those of `tasks_page`.
    """

    def again(score: MatrixScore) -> str:
        return f"{base_command} {shlex.quote(score.matrix)} --formats {shlex.quote(score.format)}"

    parts = [_matrix(i, matrix, group, again) for i, (matrix, group) in enumerate(by_matrix(scores).items())]
    lead = (
        "Matrices whose entries were stored in each format: what it does to the entries and to the condition."
    )
    return page("What narrow formats do to a matrix", lead, "".join(parts), provenance)


def _matrix(
    number: int, matrix: str, scores: Sequence[MatrixScore], again: Callable[[MatrixScore], str]
) -> str:
    points = [_matrix_point(score) for score in scores]
    inexact = [p for p in points if p.y > 0]
    body = paragraph(
        f"Condition number in FP64, estimated in the 1-norm: {q.condition(scores[0].condition_fp64)}."
    )
    if inexact:
        y = log10_axis("relative error,<br>Frobenius norm", [p.y for p in inexact]).turned()
        about = f"{matrix}: relative error of the entries against bits per value; up is better. "
        exact = [p.name for p in points if p.y == 0]
        about += f"Exact and so not drawn: {', '.join(exact)}. " if exact else ""
        plot = scatter(inexact, _bits_axis(inexact), y)
        body += figure(f"matrix-{number}", plot, about=about + _not_drawn(points), above=legend())
    body += table(f"{matrix} by format", MATRIX_COLUMNS, scores) + glossary(MATRIX_COLUMNS)
    return section(matrix, body + commands([(s.format, again(s)) for s in scores]))


def _matrix_point(score: MatrixScore) -> Point:
    lines = (
        f"{q.bits(score.bits_per_value)} bits per value, {q.size(score.values_bytes)}",
        f"Frobenius error: {q.relative(score.frobenius_error)}",
        f"condition: {q.condition(score.condition)}",
    )
    error = score.frobenius_error
    return Point(score.format, score.bits_per_value, error, error, error, -error, lines)
