"""Axes of plots: where a value is drawn, and which values get a tick.

Every axis is linear for the plotting library; the transforms are here, so that the same code places points,
ticks and labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """One axis of a plot."""

    title: str  # with its unit
    place: Callable[[float], float]  # value -> position
    ticks: tuple[tuple[float, str], ...]  # (value, text)
    low: float  # positions at the two ends; low > high turns the axis around
    high: float

    def turned(self) -> Axis:
        """Return the same axis with its small values at the top or right."""
        return Axis(self.title, self.place, self.ticks, self.high, self.low)


def _axis(
    title: str,
    place: Callable[[float], float],
    values: Iterable[float],
    candidates: Iterable[tuple[float, str]],
    *,
    least_span: float,
    least_gap: float,
) -> Axis:
    """Fit the ends around `values` with a margin, and keep the candidates inside that leave each other room.

    Earlier candidates win, so give the important ones first. `least_gap` is a fraction of the whole axis.
    """
    positions = [place(v) for v in values if math.isfinite(v)] or [0.0]
    middle, span = (min(positions) + max(positions)) / 2, max(max(positions) - min(positions), least_span)
    low, high = middle - 0.58 * span, middle + 0.58 * span
    kept: list[tuple[float, str]] = []
    for value, text in candidates:
        at = place(value)
        if low <= at <= high and all(abs(at - place(k)) > least_gap * (high - low) for k, _ in kept):
            kept.append((value, text))
    return Axis(title, place, tuple(sorted(kept)), low, high)


def log2_axis(
    title: str, values: Iterable[float], text: Callable[[float], str], *, least_gap: float = 0.06
) -> Axis:
    """Lay out a logarithmic axis with ticks at powers of two and, where there is room, halfway between them.

    `least_gap` is the room that the text of a tick needs, as a fraction of the axis.
    """
    values = list(values)
    powers = [2.0**k for k in range(-4, 64)]
    candidates = [(v, text(v)) for v in (*powers, *(1.5 * p for p in powers))]
    return _axis(
        title, math.log2, (v for v in values if v > 0), candidates, least_span=1.0, least_gap=least_gap
    )


def log10_axis(title: str, values: Iterable[float]) -> Axis:
    """Lay out a logarithmic axis with ticks at powers of ten and, where there is room, at 3 times them."""
    candidates = [(10.0**k, _power(k)) for k in range(-40, 41)]
    candidates += [(3 * 10.0**k, f"3·{_power(k)}") for k in range(-40, 41)]
    return _axis(title, math.log10, (v for v in values if v > 0), candidates, least_span=1.0, least_gap=0.09)


def _power(k: int) -> str:
    return "1" if k == 0 else f"10<sup>{k}</sup>".replace("-", "−")


def linear_axis(title: str, values: Iterable[float], *, least_span: float = 1.0) -> Axis:
    """Lay out a linear axis with ticks at multiples of 1, 2 or 5 times a power of ten."""
    finite = [v for v in values if math.isfinite(v)] or [0.0]
    least_span = least_span or max(abs(v) for v in finite) / 100 or 1.0
    span = max(max(finite) - min(finite), least_span)
    rough = span / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    first = math.floor(min(finite) / step) - 2
    candidates = [(k * step, f"{k * step:g}") for k in range(first, first + 20)]
    return _axis(title, float, finite, candidates, least_span=least_span, least_gap=0.01)


def difference_axis(title: str, differences: Iterable[float], unit: float) -> Axis:
    """Lay out an axis that is linear within a unit and logarithmic beyond it, on both sides of zero.

    Differences of formats cover four decades and both signs; asinh shows all of them and keeps zero.
    """
    finite = [d for d in differences if math.isfinite(d)]
    largest = max((abs(d) for d in finite), default=0.0)
    unit = unit or largest / 100 or 1.0

    def place(value: float) -> float:
        return math.asinh(value / unit)

    first, last = math.floor(math.log10(unit)), math.ceil(math.log10(max(largest, unit)))
    sizes = [m * 10.0**k for m in (1, 3) for k in range(last, first - 1, -1)]
    candidates = [(0.0, "0"), *((s * v, f"{s * v:+g}".replace("-", "−")) for v in sizes for s in (1, -1))]
    return _axis(title, place, (*finite, unit, -unit), candidates, least_span=1.0, least_gap=0.06)
