"""Tables about formats: on models, on the tensors of a checkpoint, on matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from fewbits.records import CheckpointReport, MatrixScore, TaskScore, TensorSummary
from fewbits.report import quantities as q
from fewbits.report.columns.checkpoint import proposal_columns, qsnr_columns
from fewbits.report.columns.column import Column
from fewbits.report.columns.matrices import MATRIX_COLUMNS
from fewbits.report.columns.tasks import task_columns
from fewbits.report.judgement import (
    by_matrix,
    by_task,
    evidence_of,
    left_wide_sentence,
    metric_of,
    narrowest_sentence,
    totals_sentence,
)
from fewbits.report.tensor_kinds import by_kind
from fewbits.report.terminal.sheet import Heading, Sheet, Wrapped


def tasks_table(scores: Sequence[TaskScore]) -> Group:
    """Lay out one table per task, FP32 first and then from few bits to many, with what the seeds say below.

    Differences that are evidence are marked with an asterisk and coloured.

    Raises:
        ArgumentError: There are no scores.
    """
    parts: list[RenderableType] = []
    for task, group in by_task(scores).items():
        metric = metric_of(group[0])
        parts.append(Sheet(Heading(task, metric.heading), task_columns(group), group))
        parts.append(Wrapped(evidence_of(group)))
        parts.append(Wrapped(narrowest_sentence(group), "bold"))
        left = left_wide_sentence(group)
        parts += [*([Wrapped(left)] if left else []), Text()]
    return Group(*parts)


def checkpoint_table(report: CheckpointReport, *, largest: int = 40) -> Group:
    """Lay out the `largest` kinds of tensors with their QSNR per format and proposals, and the size of all.

    Tensors that differ in the number of their block only are one row, with their number in brackets and the
    QSNR of the worst.

    Where the terminal is too narrow for one table, the columns continue in further tables.
    """
    kinds, all_tensors = by_kind(report), len(report.tensors)
    shown = sorted(kinds.tensors, key=lambda t: -t.stored_bytes)[:largest]
    parts: list[RenderableType] = [
        _Continued(kinds, shown),
        Text(),
        Wrapped(totals_sentence(report), "bold"),
    ]
    left_out = len(kinds.tensors) - len(shown)
    if left_out:
        rest = "1 smaller is" if left_out == 1 else f"{left_out} smaller are"
        parts.append(Wrapped(f"The {len(shown)} largest kinds are shown, {rest} left out; --json has all."))
    elif all_tensors > len(shown):
        parts.append(
            Wrapped(f"Each row is one kind of {all_tensors} tensors in all, with the QSNR of its worst.")
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
        condition = q.condition(group[0].condition_fp64)
        parts.append(Sheet(Heading(matrix, f"condition in FP64: {condition}"), columns, group))
        parts.extend(Wrapped(f"{s.format}: {s.note}") for s in group if s.note)
        parts.append(Text())
    return Group(*parts)


@dataclass(frozen=True)
class _Continued:
    """The tensors of a checkpoint in as many tables as the width of the terminal asks for."""

    report: CheckpointReport
    shown: Sequence[TensorSummary]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        proposal, qsnr = proposal_columns(self.report), qsnr_columns(self.report)
        heading = Heading(self.report.path, f"formats that {self.report.bound}")
        single = Sheet(heading, proposal[:4] + qsnr + proposal[4:], self.shown)
        if single.fits(options):
            yield single
            return
        yield Sheet(heading, proposal, self.shown)
        while qsnr:
            count = self._most(qsnr, options, folded=False)
            # Fewer tables, for longer rows: of the last columns, and where a name has no room beside two.
            if count == 1 or self._qsnr(qsnr).fits(options, folded=True):
                count = self._most(qsnr, options, folded=True)
            yield Text()
            yield self._qsnr(qsnr[:count])
            qsnr = qsnr[count:]

    def _most(self, columns: list[Column[TensorSummary]], options: ConsoleOptions, *, folded: bool) -> int:
        """Return how many of the columns have room in one table: at least one."""
        counts = range(len(columns), 1, -1)
        return next((n for n in counts if self._qsnr(columns[:n]).fits(options, folded=folded)), 1)

    def _qsnr(self, columns: list[Column[TensorSummary]]) -> Sheet[TensorSummary]:
        heading = Heading(self.report.path, "QSNR in each format, dB")
        return Sheet(heading, [*proposal_columns(self.report)[:1], *columns], self.shown)
