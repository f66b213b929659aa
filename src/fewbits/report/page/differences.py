"""A plot of differences in quality from a baseline: the mean over seeds, its interval, and each seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fewbits.evidence import Evidence
from fewbits.report import quantities as q
from fewbits.report.judgement import Metric
from fewbits.report.page.axes import difference_axis
from fewbits.report.page.figures import Dot, Series, dots
from fewbits.report.page.markup import Plot, Sign

_LEGEND = (Sign("mean over seeds, with its 95 % interval"), Sign("each seed", "muted", "circle"))


@dataclass(frozen=True)
class Compared:
    """Something that was measured from several seeds, and the baseline from the same ones."""

    name: str
    evidence: Evidence
    differences: Sequence[float]  # one per seed


def differences_plot(identity: str, rows: Sequence[Compared], metric: Metric, baseline: str) -> list[Plot]:
    """Return the plot of the rows against the baseline, or none where there is nothing to compare."""
    if not rows:
        return []
    means = [_dot(i, row, metric) for i, row in enumerate(rows)]
    seeds = [
        Dot(i, d, (f"one seed: {q.signed(d, metric.digits)} {metric.difference_unit}",))
        for i, row in enumerate(rows)
        for d in row.differences
        if len(row.differences) > 1
    ]
    margins = sorted(row.evidence.margin for row in rows if row.evidence.margin > 0)
    reach = [v for dot in (*means, *seeds) for v in (dot.low, dot.value, dot.high)]
    axis = difference_axis(metric.difference_unit, reach, margins[len(margins) // 2] if margins else 0.0)
    figure = dots(
        [row.name for row in rows],
        [Series(seeds, "muted", "circle-open", 7), Series(means)],
        axis if metric.higher_is_better else axis.reversed(),
        reference=0.0,
    )
    about = f"On held-out data; right is better, the dotted line is {baseline}."
    if seeds:
        about += " An interval that crosses the dotted line is no evidence."
    broken = [row.name for row in rows if not math.isfinite(row.evidence.mean)]
    about += f" Without a finite value and so not drawn: {', '.join(broken)}." if broken else ""
    title = f"{q.capital(metric.title)} minus that of {baseline}"
    return [Plot(identity, title, figure, about, _LEGEND if seeds else ())]


def _dot(row: int, compared: Compared, metric: Metric) -> Dot:
    evidence = compared.evidence
    hover = (
        f"difference: {q.signed(evidence.mean, metric.digits)} {metric.difference_unit}",
        f"95 % interval: +- {q.margin(evidence.margin, metric.digits)}",
    )
    return Dot(row, evidence.mean, hover, evidence.low, evidence.high)
