"""A table and a text for the terminal, in which no word is broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fewbits.report import quantities as q
from fewbits.report.columns.column import Column

Row = TypeVar("Row")

_LEAST_NAME = 22  # characters in a line of a folded name
_BROKEN_NAME = 6  # in a line of one whose words are broken, so that numbers stay whole
_STYLE = {"worse": "red", "better": "green", "": ""}


@dataclass(frozen=True)
class Wrapped:
    """A text whose lines end where words do, words of names among them."""

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("\n".join(q.lines(self.text, options.max_width)), style=self.style, overflow="fold")


@dataclass(frozen=True)
class Heading:
    """The title of a table: what it is about, and a remark."""

    subject: str
    rest: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        title = Text.assemble((q.visible(self.subject), "bold"), (f"  {q.visible(self.rest)}", "dim"))
        if cell_len(title.plain) <= options.max_width:
            yield title
        else:
            yield Wrapped(self.subject, "bold")
            yield Wrapped(self.rest, "dim")


@dataclass(frozen=True)
class Sheet(Generic[Row]):
    """One table without vertical lines, its columns two spaces apart where the terminal is wide enough.

    Long names are folded if the terminal is too narrow; columns that still do not fit are omitted and named
    below.
    """

    heading: Heading
    columns: Sequence[Column[Row]]
    rows: Sequence[Row]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = list(self.columns)
        while self._folded(columns) > options.max_width:
            spare = max(columns, key=lambda column: column.spare)
            if not spare.spare:
                break
            columns.remove(spare)
        while len(columns) > 1 and sum(self._narrowest(columns)) + len(columns) - 1 > options.max_width:
            columns.pop()  # a number that is cut would be another number
        gap = 2 if self._natural(columns, gap=2) <= options.max_width else 1
        yield self.heading
        yield self._table(columns, self._widths(columns, options.max_width), gap=gap)
        left_out = [column.title for column in self.columns if column not in columns]
        if left_out:
            yield Wrapped(f"No room here for: {', '.join(left_out)}; --json has all.", "dim")

    def fits(self, options: ConsoleOptions, *, folded: bool = False) -> bool:
        """Whether all columns have room, if names are folded or without that."""
        width = self._folded(self.columns) if folded else self._natural(self.columns, gap=1)
        return width <= options.max_width

    def _folded(self, columns: Sequence[Column[Row]]) -> int:
        return sum(map(self._least, columns)) + len(columns) - 1

    def _natural(self, columns: Sequence[Column[Row]], *, gap: int) -> int:
        return sum(map(self._most, columns)) + gap * (len(columns) - 1)

    def _most(self, column: Column[Row]) -> int:
        """Return the width of a column in which nothing is folded."""
        cells = [cell_len(column.text(row)) for row in self.rows]
        return max([*map(cell_len, column.short.split("\n")), *(n + column.can_mark for n in cells)])

    def _least(self, column: Column[Row]) -> int:
        """Return the width of a column below which words would be broken, or names take very many lines."""
        most = self._most(column)
        if not column.is_name:
            return most
        words = [_least(column.text(row)) for row in self.rows]
        return max([*map(cell_len, column.short.split("\n")), *words, min(most, _LEAST_NAME)])

    def _narrowest(self, columns: Sequence[Column[Row]]) -> list[int]:
        """Return the width of each column below which numbers would be cut, or names be broken up."""
        widths = [self._least(column) for column in columns]
        return [min(n, _BROKEN_NAME) if c.is_name else n for c, n in zip(columns, widths, strict=True)]

    def _widths(self, columns: Sequence[Column[Row]], most: int) -> list[int]:
        """Return the least width of each column; words of names are broken where numbers would be cut."""
        widths = [self._least(column) for column in columns]
        lacking = sum(widths) + len(widths) - 1 - most
        names = [i for i, column in enumerate(columns) if column.is_name]
        while lacking > 0 and names:
            widest = max(names, key=lambda i: widths[i])
            if widths[widest] <= _BROKEN_NAME:
                break
            widths[widest], lacking = widths[widest] - 1, lacking - 1
        return widths

    def _table(self, columns: Sequence[Column[Row]], widths: Sequence[int], *, gap: int) -> Table:
        # The box itself puts one space between columns, the padding the rest.
        table = Table(
            box=box.SIMPLE_HEAD, show_edge=False, padding=(0, gap - 1, 0, 0), pad_edge=False,
            header_style="bold",
        )  # fmt: skip
        for column, width in zip(columns, widths, strict=True):
            table.add_column(
                Text(column.short, overflow="fold"),
                justify="left" if column.is_name else "right",
                no_wrap=not column.is_name,
                min_width=width,
                width=width if width < self._least(column) else None,
            )
        for row in self.rows:
            mark = next((m for m in (column.mark(row) for column in columns) if m), "")
            table.add_row(*(_cell(column, row) for column in columns), style=_STYLE[mark])
        return table


def _cell(column: Column[Row], row: Row) -> RenderableType:
    if column.is_name:
        return _Name(column.text(row))
    # A column that can be marked keeps the place of the mark free, so that digits stay below each other.
    mark = ("*" if column.mark(row) else " ") if column.can_mark else ""
    return Text(column.text(row) + mark)


@dataclass(frozen=True)
class _Name:
    """A name in a cell, folded where the column is too narrow for it."""

    text: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(_least(self.text), cell_len(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("\n".join(q.lines(self.text, options.max_width)), overflow="fold")


def _least(text: str) -> int:
    """Return the width below which a word of the text would be broken."""
    return max((cell_len(piece.rstrip()) for piece in q.pieces(text)), default=0)
