"""How a plot shows which formats are on the Pareto front of cost and quality."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fewbits.report.page.figures import Dot, Series
from fewbits.report.page.markup import Sign

FRONT_SIGNS = (
    Sign("on the Pareto front: nothing with fewer bits is as good"),
    Sign("another format is better with no more bits", "muted", "circle"),
)


def front_series(dots: Sequence[Dot], front: Collection[int]) -> list[Series]:
    """Return the dots off the front, then those on it, which are drawn on top."""
    beaten = [dot for i, dot in enumerate(dots) if i not in front]
    return [Series(beaten, "muted", "circle-open"), Series([dots[i] for i in front])]


def not_drawn(names: Sequence[str]) -> str:
    """Return a sentence that names what is not drawn."""
    return f"Without a finite value and so not drawn: {', '.join(names)}." if names else ""
