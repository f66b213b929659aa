"""Axes of plots: Plotly's own, and one that Plotly does not have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from fewbits.report.json_text import Json

Figure = dict[str, Json]  # what the script of a page hands to Plotly, or a part of it

_LEAST_GAP = 0.2  # between ticks, of the axis: on a phone the text of a tick takes a fifth of it


@dataclass(frozen=True)
class Axis:
    """One axis of a plot."""

    title: str  # the unit, short enough for the width of a phone
    settings: tuple[tuple[str, Json], ...] = ()  # for Plotly
    place: Callable[[float], float] = float  # value -> coordinate for Plotly

    def reversed(self) -> Axis:
        """Return the same axis with its small values at the right or top."""
        return replace(self, settings=(*self.settings, ("autorange", "reversed")))


def linear_axis(title: str) -> Axis:
    """Return an axis with ticks by Plotly."""
    return Axis(title)


def log_axis(title: str, values: Iterable[float]) -> Axis:
    """Return a logarithmic axis for positive values, with ticks by Plotly."""
    positive = [v for v in values if 0 < v < math.inf] or [1.0]
    decades = math.log10(max(positive) / min(positive))
    settings: tuple[tuple[str, Json], ...] = (("type", "log"), ("exponentformat", "power"))
    # On a phone Plotly's own choice for some decades is so many ticks that their texts cross.
    if decades < 0.6 or decades > 4.5:
        return Axis(title, settings)
    return Axis(title, (*settings, ("dtick", "D2" if decades < 2 else 1)))


def difference_axis(title: str, differences: Iterable[float], unit: float) -> Axis:
    """Return an axis that is linear within a unit and logarithmic beyond it, on both sides of zero.

    Differences of formats cover four decades and both signs: asinh shows all of them and keeps zero. Plotly
    has no such axis, so the ticks are chosen here.

    Args:
        title: Of the axis.
        differences: All values that will be drawn; those that are not finite are passed over.
        unit: Where the axis becomes logarithmic; 0 takes a hundredth of the largest difference.
    """
    finite = [d for d in differences if math.isfinite(d)]
    largest = max((abs(d) for d in finite), default=0.0)
    unit = unit or largest / 100 or 1.0

    def place(value: float) -> float:
        return math.asinh(value / unit)

    ends = [place(d) for d in (*finite, unit, -unit)]
    low, high = min(ends), max(ends)
    first, last = math.floor(math.log10(unit)), math.ceil(math.log10(max(largest, unit)))
    sizes = [m * 10.0**k for m in (1, 3) for k in range(last, first - 1, -1)]
    chosen = [0.0]  # and then the large ones first, each where it leaves the others room
    for value in (sign * size for size in sizes for sign in (1, -1)):
        apart = all(abs(place(value) - place(other)) > _LEAST_GAP * (high - low) for other in chosen)
        if low <= place(value) <= high and apart:
            chosen.append(value)
    ticks = sorted(chosen)
    return Axis(
        title, (("tickvals", [place(v) for v in ticks]), ("ticktext", [_signed(v) for v in ticks])), place
    )


def _signed(value: float) -> str:
    return "0" if value == 0 else f"{value:+g}".replace("-", "−")
