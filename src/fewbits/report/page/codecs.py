"""The page of codecs: bytes and predicted time against what they do to the model."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence

from fewbits.fronts import pareto_front
from fewbits.records import CodecComparison, CodecScore, Provenance
from fewbits.report import quantities as q
from fewbits.report.columns.codecs import (
    WIDE,
    about_codecs,
    by_bytes,
    codec_columns,
    codec_metric,
    evidence_of_codecs,
    fastest_sentence,
    milliseconds,
    predicted_from,
)
from fewbits.report.page.axes import difference_axis, log_axis
from fewbits.report.page.figures import Curve, Dot, curves, dots
from fewbits.report.page.front import front_series, not_drawn
from fewbits.report.page.markup import (
    Block,
    Commands,
    Paragraph,
    Plot,
    Section,
    Sign,
    Table,
    curve_signs,
    page,
)


def codecs_page(
    comparisons: Sequence[CodecComparison], provenance: Provenance, *, base_command: str = "fewbits compare"
) -> str:
    """Write the page of codecs: per task two Pareto plots, a table, and predicted times against links.

    Args:
        comparisons: At least one; each gets its own part of the page.
        provenance: The command and versions that the foot of the page repeats.
        base_command: The command with the options that all rows share; a row adds its task and codec.

    Raises:
        MissingDependencyError: Plotly or Jinja2 is not installed.
    """
    parts = [
        Section(f"Task: {comparison.task}", _blocks(number, comparison, base_command))
        for number, comparison in enumerate(comparisons)
    ]
    lead = "Models trained by several processes that exchange gradients in each codec."
    return page("What codecs save and cost", lead, parts, provenance)


def _blocks(number: int, comparison: CodecComparison, base_command: str) -> list[Block]:
    metric, scores = codec_metric(comparison), by_bytes(comparison.scores)
    better = "higher" if metric.higher_is_better else "lower"
    task = "--model" if ":" in comparison.task else "--task"
    again = [
        (s.codec, f"{base_command} {task} {shlex.quote(comparison.task)} --codecs {shlex.quote(s.codec)}")
        for s in scores
    ]
    return [
        Paragraph(f"{about_codecs(comparison)}; {metric.title} on held-out data: {better} is better."),
        Paragraph(evidence_of_codecs(comparison)),
        Paragraph(predicted_from(comparison)),
        Paragraph(fastest_sentence(comparison), "finding"),
        *_pareto_plots(number, comparison),
        Table(f"Task {comparison.task} by codec", codec_columns(comparison), scores),
        Commands(again),
        *_links_plot(number, comparison),
    ]  # fmt: skip


def _pareto_plots(number: int, comparison: CodecComparison) -> list[Plot]:
    """Return the plots of bytes, and of time with the slowest links, against the difference from FP32."""
    if all(s.codec == WIDE for s in comparison.scores):
        return []
    slowest = min(range(len(comparison.scores[0].predicted)), key=lambda i: _speeds(comparison)[i])
    speed = f"{_speeds(comparison)[slowest]:g} Gbit/s"
    return [
        _pareto_plot(
            f"bytes-{number}",
            comparison,
            "bytes sent",
            lambda s: s.bytes_sent,
            lambda s: q.size(s.bytes_sent),
        ),
        _pareto_plot(
            f"time-{number}",
            comparison,
            f"time predicted at {speed}",
            lambda s: s.predicted[slowest].seconds,
            lambda s: f"{milliseconds(s.predicted[slowest].seconds)} ms",
        ),
    ]


def _pareto_plot(
    identity: str,
    comparison: CodecComparison,
    what: str,
    cost: Callable[[CodecScore], float],
    written: Callable[[CodecScore], str],
) -> Plot:
    metric = codec_metric(comparison)
    # FP32 has a row of its own: it is on the front where nothing that costs less is as good.
    rows = sorted(comparison.scores, key=cost)
    drawn = [_dot(i, s, f"{what} in a step: {written(s)}", comparison) for i, s in enumerate(rows)]
    sign = 1 if metric.higher_is_better else -1
    front = pareto_front([(cost(s), sign * s.evidence.mean) for s in rows])
    reach = [v for dot in drawn for v in (dot.low, dot.value, dot.high)]
    margins = sorted(m for s in rows if (m := s.evidence.margin) > 0)
    axis = difference_axis(metric.difference_unit, reach, margins[len(margins) // 2] if margins else 0.0)
    figure = dots(
        [f"{s.codec}, {written(s).replace(' ', '')}" for s in rows],  # a name may be broken at spaces
        front_series(drawn, front),
        axis if metric.higher_is_better else axis.reversed(),
        reference=0.0,
        front=[drawn[i] for i in front],
    )
    about = f"Each codec with its {what} in a step; right is better, the dotted line is fp32. "
    if len(comparison.seeds) > 1:
        about += (
            "Bars are 95 % intervals over paired seeds; one that crosses the dotted line is no evidence. "
        )
    about += not_drawn([s.codec for s in rows if not math.isfinite(s.evidence.mean)])
    signs = (
        Sign(f"on the Pareto front: nothing with less {_noun(what)} is as good"),
        Sign(f"another codec is better with no more {_noun(what)}", "muted", "circle"),
    )
    return Plot(identity, f"{q.capital(metric.title)} minus that of fp32, by {what}", figure, about, signs)


def _noun(what: str) -> str:
    return "traffic" if what.startswith("bytes") else "time"


def _dot(row: int, score: CodecScore, written: str, comparison: CodecComparison) -> Dot:
    metric, evidence = codec_metric(comparison), score.evidence
    hover = (
        written,
        f"{metric.title}: {q.plain(score.mean, metric.digits)} {metric.unit}",
        f"difference from fp32: {q.signed(evidence.mean, metric.digits)}",
        f"relative error of a reduction: {q.relative(score.relative_error)}",
    )
    return Dot(row, evidence.mean, hover, evidence.low, evidence.high)


def _links_plot(number: int, comparison: CodecComparison) -> list[Plot]:
    """Return predicted time against the speed of links, where there are several speeds."""
    if len(set(_speeds(comparison))) < 2:
        return []
    drawn = [
        Curve(
            s.codec,
            tuple((t.gigabits, 1e3 * t.seconds) for t in sorted(s.predicted, key=lambda t: t.gigabits)),
            tuple(
                f"{t.gigabits:g} Gbit/s: {milliseconds(t.seconds)} ms"
                for t in sorted(s.predicted, key=lambda t: t.gigabits)
            ),
        )
        for s in by_bytes(comparison.scores)
    ]
    times = [time for curve in drawn for _, time in curve.points]
    figure = curves(
        drawn,
        log_axis("Gbit/s", _speeds(comparison)),
        log_axis("ms per step", times),
        reference=1e3 * comparison.compute_seconds,
    )
    about = "Predicted, not measured; lower is better, the dotted line is compute without exchange."
    signs = curve_signs([curve.name for curve in drawn])
    return [Plot(f"links-{number}", "Predicted time of a step by speed of links", figure, about, signs)]


def _speeds(comparison: CodecComparison) -> list[float]:
    return [time.gigabits for time in comparison.scores[0].predicted]
