"""The page of a checkpoint in several formats."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence

from fewbits.fronts import pareto_front
from fewbits.records import CheckpointReport, Provenance
from fewbits.report import quantities as q
from fewbits.report.columns.checkpoint import (
    PASSING,
    REASON,
    TOTAL_COLUMNS,
    proposal_columns,
    qsnr_columns,
)
from fewbits.report.judgement import totals_sentence
from fewbits.report.page.axes import linear_axis
from fewbits.report.page.figures import Cells, Dot, dots, heat_map
from fewbits.report.page.front import FRONT_SIGNS, front_series
from fewbits.report.page.markup import Block, Commands, Paragraph, Plot, Section, Table, page
from fewbits.report.tensor_kinds import by_kind
from fewbits.report.totals import FormatTotal, format_totals

_LARGEST_DRAWN = 60  # rows of a heat map that still read as one picture
_LARGEST_LISTED = 1000  # rows of a table that a browser still sorts at once


def checkpoint_page(
    report: CheckpointReport,
    provenance: Provenance,
    *,
    base_command: str | Callable[[str], str] = "fewbits compare",
) -> str:
    """Write the page of a checkpoint: QSNR and size per format, a heat map by tensor, and the proposals.

    Args:
        report: All of its tensors in all formats.
        provenance: The command and versions that the foot of the page repeats.
        base_command: The command with the options that all rows share, or a function that returns it for a
            format; a row adds its format.

    Raises:
        MissingDependencyError: Plotly or Jinja2 is not installed.
    """

    def again(format: str) -> str:
        base = base_command if isinstance(base_command, str) else base_command(format)
        return f"{base} {shlex.quote(report.path)} --formats {shlex.quote(format)}"

    totals = format_totals(report)
    columns = [column for column in TOTAL_COLUMNS if _asks(report) or column.title != PASSING]
    blocks: list[Block] = [
        Paragraph(totals_sentence(report), "finding"),
        *_totals_plot(report, totals),
        Table("Whole checkpoint by format", columns, totals),
        Commands([(t.format, again(t.format)) for t in totals]),
    ]
    parts = [
        Section("Whole checkpoint in one format", blocks),
        Section("Tensor by tensor", [*_tensors_plot(report), *_tables(report)]),
    ]
    return page("What narrow formats do to a checkpoint", report.path, parts, provenance)


def _asks(report: CheckpointReport) -> bool:
    """Whether a QSNR was asked for: within a budget none is."""
    return math.isnan(report.budget)


def _totals_plot(report: CheckpointReport, totals: Sequence[FormatTotal]) -> list[Plot]:
    drawn = sorted((t for t in totals if math.isfinite(t.median_qsnr_db)), key=lambda t: t.total_bytes)
    if not drawn:
        return []
    points = [_dot(i, total, asked=_asks(report)) for i, total in enumerate(drawn)]
    front = pareto_front([(t.total_bytes, t.median_qsnr_db) for t in drawn])
    about = (
        "Each format with the size of the whole checkpoint in it; right is better. A dot is the median "
        "tensor, its bar reaches from the worst to the best"
    )
    # No axis has a place for what no format but an exact one keeps.
    asked = report.min_qsnr_db if _asks(report) and math.isfinite(report.min_qsnr_db) else None
    about += ". " if asked is None else f"; dotted: the {asked:g} dB asked for. "
    exact = [t.format for t in totals if t.median_qsnr_db == math.inf]
    about += f"Exact in the median tensor and so not drawn: {', '.join(exact)}." if exact else ""
    figure = dots(
        [f"{t.format}, {q.size(t.total_bytes)}" for t in drawn],
        front_series(points, front),
        linear_axis("dB"),
        reference=asked,
        front=[points[i] for i in front],
    )
    return [Plot("totals", "QSNR of the tensors in each format", figure, about, FRONT_SIGNS)]


def _dot(row: int, total: FormatTotal, *, asked: bool) -> Dot:
    passing = f"{total.passing} of {total.measured} tensors reach the QSNR asked for"
    hover = (
        f"{q.bits(total.bits_per_value)} bits per value, {q.size(total.total_bytes)}",
        f"QSNR: median {q.decibels(total.median_qsnr_db)}, worst {q.decibels(total.lowest_qsnr_db)} dB",
        *([passing] if asked else []),
    )
    return Dot(row, total.median_qsnr_db, hover, total.lowest_qsnr_db, total.highest_qsnr_db)


def _tensors_plot(report: CheckpointReport) -> list[Plot]:
    levels = {(s.tensor, s.format): s.error.qsnr_db for s in report.scores}
    formats = [t.format for t in format_totals(report) if t.lowest_qsnr_db < math.inf]
    ordered = [t.tensor for t in sorted(report.tensors, key=lambda t: -t.stored_bytes)]
    drawn = [name for name in ordered if any((name, f) in levels for f in formats)][:_LARGEST_DRAWN]
    if not drawn:
        return []
    values = [[levels.get((tensor, f)) for f in formats] for tensor in drawn]
    about = f"The {len(drawn)} largest tensors; brighter is better."
    figure = heat_map(drawn, formats, [Cells("weight", values)])
    return [Plot("tensors", "QSNR of each tensor in each format, dB", figure, about)]


def _tables(report: CheckpointReport) -> list[Block]:
    blocks: list[Block] = []
    kinds = by_kind(report)
    if len(kinds.tensors) < len(report.tensors):
        rows = sorted(kinds.tensors, key=lambda t: -t.stored_bytes)[:_LARGEST_LISTED]
        caption = "Proposals by kind of layer, QSNR of the worst"
        blocks.append(Table(caption, proposal_columns(kinds), rows, explained=()))
    listed = sorted(report.tensors, key=lambda t: -t.stored_bytes)[:_LARGEST_LISTED]
    rest = len(report.tensors) - len(listed)
    if rest:
        text = f"The table holds the {len(listed)} largest tensors; --json has the other {rest}."
        blocks.append(Paragraph(text))
    proposals = [*proposal_columns(report), REASON]
    columns = [*proposals, *qsnr_columns(report)]
    caption = "Proposals and QSNR by tensor, largest first"
    return [*blocks, Table(caption, columns, listed, explained=proposals)]
