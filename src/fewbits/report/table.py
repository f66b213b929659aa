"""Tables for the terminal: pure functions from records to Rich renderables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fewbits.records import CheckpointReport, MatrixScore, TaskScore, TensorSummary
from fewbits.report import quantities as q
from fewbits.report.columns import MATRIX_COLUMNS, Column, proposal_columns, qsnr_columns, task_columns
from fewbits.report.judgement import (
    by_matrix,
    by_task,
    evidence_of,
    metric_of,
    narrowest_sentence,
    totals_sentence,
)
from fewbits.report.layers import by_kind

Row = TypeVar("Row")

_STYLE = {"worse": "red", "better": "green", "": ""}
_NAMES = frozenset(
    {"format", "tensor", "stored as", "proposal", "worst tensor"}
)  # left-aligned; fold where too wide
_CROWDED_OUT = frozenset({"95 % interval (+-)", "saturated (%)"})  # by the column of training, in 80 columns
_ENDLESS = 10_000  # columns: no terminal is as wide, so a table measured in it is not squeezed


def tasks_table(scores: Sequence[TaskScore]) -> Group:
    """Lay out one table per task, FP32 first and then from few bits to many, with what the seeds say below.

    Differences that are evidence are marked with an asterisk and coloured.

    Raises:
        ArgumentError: There are no scores, or one has an unknown metric.
    """
    parts: list[RenderableType] = []
    for task, group in by_task(scores).items():
        metric = metric_of(group[0])
        columns = [c for c in task_columns(group) if not group[0].trained or c.title not in _CROWDED_OUT]
        parts.append(Sheet(heading(task, f"{metric.title}, {metric.unit}"), columns, group))
        parts.append(Text(evidence_of(group)))
        parts.append(Text(narrowest_sentence(group) + "\n", style="bold"))
    return Group(*parts)


def checkpoint_table(report: CheckpointReport, *, largest: int = 40) -> Group:
    """Lay out the `largest` kinds of tensors with their QSNR per format and proposals, and the whole's size.

    Tensors that differ in the number of their block only are one row, with their number in brackets and the
    QSNR of the worst.

    Where the terminal is too narrow for one table, the columns continue in further tables.
    """
    report, all_tensors = by_kind(report), len(report.tensors)
    shown = sorted(report.tensors, key=lambda t: -t.stored_bytes)[:largest]
    total = Text("\n" + totals_sentence(report), style="bold")
    parts: list[RenderableType] = [_Continued(report, shown), total]
    left_out = len(report.tensors) - len(shown)
    if left_out:
        rest = "1 smaller is" if left_out == 1 else f"{left_out} smaller are"
        parts.append(Text(f"The {len(shown)} largest kinds are shown, {rest} left out; --json has all."))
    elif all_tensors > len(shown):
        parts.append(
            Text(f"Each row is one kind of {all_tensors} tensors in all, with the QSNR of its worst.")
        )
    parts.append(Text())
    return Group(*parts)


def matrices_table(scores: Sequence[MatrixScore]) -> Group:
    """Lay out one table per matrix, from few bits to many, with the notes below it.

    Raises:
        ArgumentError: There are no scores.
    """
    columns = [c for c in MATRIX_COLUMNS if c.title != "note"]  # long and mostly empty: below the table
    parts: list[RenderableType] = []
    for matrix, group in by_matrix(scores).items():
        known = q.condition(group[0].condition_fp64)
        parts.append(Sheet(heading(matrix, f"condition in FP64: {known}"), columns, group))
        parts.extend(Text(f"{q.visible(s.format)}: {q.visible(s.note)}") for s in group if s.note)
        parts.append(Text())
    return Group(*parts)


def heading(subject: str, rest: str) -> Text:
    """Build the title of a table: what it is about, and a remark."""
    return Text.assemble((q.visible(subject), "bold"), (f"  {rest}", "dim"))


@dataclass(frozen=True)
class Sheet(Generic[Row]):
    """One table without vertical lines, its columns two spaces apart where the terminal is wide enough."""

    title: Text
    columns: Sequence[Column[Row]]
    rows: Sequence[Row]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table(gap=2 if self.fits(console, options, gap=2) else 1)

    def fits(self, console: Console, options: ConsoleOptions, *, gap: int) -> bool:
        """Whether the table needs no folding."""
        measured = Measurement.get(console, options.update(width=_ENDLESS), self._table(gap=gap))
        return measured.maximum <= options.max_width

    def _table(self, *, gap: int) -> Table:
        # The box itself puts one space between columns, the padding the rest.
        table = Table(
            title=self.title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, show_edge=False,
            padding=(0, gap - 1, 0, 0), pad_edge=False, header_style="bold",
        )  # fmt: skip
        for column in self.columns:
            name = column.title in _NAMES
            table.add_column(Text(column.narrow), justify="left" if name else "right", no_wrap=not name)
        for row in self.rows:
            mark = next((m for m in (column.mark(row) for column in self.columns) if m), "")
            table.add_row(*(_cell(column, row) for column in self.columns), style=_STYLE[mark])
        return table


def _cell(column: Column[Row], row: Row) -> RenderableType:
    if column.title in _NAMES:
        return _Name(column.text(row))
    # A column that can be marked keeps the place of the mark free, so that digits stay below each other.
    mark = ("*" if column.mark(row) else " ") if column.can_mark else ""
    return Text(column.text(row) + mark)


@dataclass(frozen=True)
class _Name:
    """A long name, broken after its punctuation where the column is too narrow for it."""

    text: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(cell_len(self.text), 10), cell_len(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [""]
        for piece in re.findall(r"[^._,/]*[._,/]?", self.text):
            if lines[-1] and cell_len(lines[-1] + piece) > options.max_width:
                lines.append("")
            lines[-1] += piece
        yield Text("\n".join(lines), overflow="fold")


@dataclass(frozen=True)
class _Continued:
    """The tensors of a checkpoint in as many tables as the width of the terminal asks for."""

    report: CheckpointReport
    shown: Sequence[TensorSummary]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        proposal, qsnr = proposal_columns(self.report), qsnr_columns(self.report)
        title = heading(self.report.path, f"formats that keep {self.report.min_qsnr_db:g} dB")
        whole = Sheet(title, proposal[:4] + qsnr + proposal[4:], self.shown)
        if whole.fits(console, options, gap=1):
            yield whole
            return
        yield Sheet(title, proposal, self.shown)
        while qsnr:
            counts = range(len(qsnr), 1, -1)
            count = next((n for n in counts if self._qsnr(qsnr[:n]).fits(console, options, gap=1)), 1)
            yield Text()
            yield self._qsnr(qsnr[:count])
            qsnr = qsnr[count:]

    def _qsnr(self, columns: list[Column[TensorSummary]]) -> Sheet[TensorSummary]:
        title = heading(self.report.path, "QSNR in each format, dB")
        return Sheet(title, [*proposal_columns(self.report)[:1], *columns], self.shown)
