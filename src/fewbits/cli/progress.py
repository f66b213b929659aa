"""A progress bar with an estimate, on the error stream, so that tables can be piped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Report(Protocol):
    """Shows how far some work is."""

    def __call__(self, what: str, done: float, total: float, note: str = "") -> None:
        """Show that ``done`` of ``total`` of ``what`` is done, with a short note beside it."""


class Interrupted(Exception):  # noqa: N818 - it is what happened, not an error
    """An interrupt came, and the message says what became of the work."""


@contextmanager
def progress_bar() -> Iterator[Report]:
    """Yield a function that shows how far the work is; one bar per kind of work."""
    columns = (
        TextColumn("{task.description:<34}"),
        BarColumn(bar_width=28),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as bar:
        known: dict[str, TaskID] = {}

        def report(what: str, done: float, total: float, note: str = "") -> None:
            if what not in known:
                known[what] = bar.add_task(what, total=total, note=note)
            bar.update(known[what], completed=done, total=total, note=note)

        yield report
