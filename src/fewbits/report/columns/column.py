"""A column of a report, for terminal and page: what is printed, what it sorts by, what it means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column: how a row's cell reads and how it sorts."""

    title: str  # header on the page
    short: str  # header in the terminal, with explicit line breaks
    about: str  # one sentence that explains the column
    text: Callable[[Row], str]
    order: Callable[[Row], float | str]  # a number sorts by value, a text as text; NaN comes last
    judge: Callable[[Row], str] | None = None  # "worse", "better" or ""
    is_name: bool = False  # left-aligned in the terminal, and folded where it is long
    spare: int = (
        0  # in a terminal that is too narrow, the column with the largest is left out first; 0: never
    )

    @property
    def can_mark(self) -> bool:
        """Whether rows can be marked in this column."""
        return self.judge is not None

    def mark(self, row: Row) -> str:
        """Return "worse" or "better" where the row's number is evidence of that, "" otherwise."""
        return self.judge(row) if self.judge else ""


FORMAT = "Number format, as --formats takes it."
BITS = "Stored bits per value, shared scales counted."
QSNR = "Signal power over the power of the rounding noise, in decibels; exact: nothing changed."
FLUSHED = "Nonzero values that became zero."
SATURATED = "Finite values beyond the largest that the element can hold."
