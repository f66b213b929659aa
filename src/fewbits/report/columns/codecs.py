"""The columns about codecs compared in training, and what their table says in words."""

from __future__ import annotations

from collections.abc import Sequence

from fewbits.records import CodecComparison, CodecScore
from fewbits.report import quantities as q
from fewbits.report.columns.column import Column
from fewbits.report.judgement import Metric, evidence_sentence, metric_named, verdict

WIDE = "fp32"


def codec_metric(comparison: CodecComparison) -> Metric:
    """Return how the metric of a task is written."""
    return metric_named(comparison.metric, lower_is_better=comparison.lower_is_better)


def codec_columns(comparison: CodecComparison) -> list[Column[CodecScore]]:
    """Build the columns of the table of one task: one of predicted times for each speed of links."""
    metric = codec_metric(comparison)
    d, unit = metric.digits, metric.difference_unit
    direction = "higher" if metric.higher_is_better else "lower"
    error = (
        "Of the mean of the gradients that the trained model has on one batch: |mean - exact| / |exact|,"
        " 2-norms, exact in float64."
    )
    return [
        Column("codec", "codec", "What gradients travel in, as --codecs takes it.",
               lambda s: q.visible(s.codec), lambda s: s.codec, is_name=True),
        Column("bits per value", "bits/\nvalue", "On the wire, scales and indices counted.",
               lambda s: q.bits(s.bits_per_value), lambda s: s.bits_per_value, spare=3),
        Column("sent", "sent/\nstep", "Bytes that a process sends in a step, measured.",
               lambda s: q.size(s.bytes_sent), lambda s: s.bytes_sent, spare=4),
        Column("times fewer", "times\nfewer", "Bytes of the same values in their own dtype, over those sent.",
               lambda s: f"{_fewer(s):.2f}", _fewer),
        Column("relative error", "rel.\nerror", error,
               lambda s: q.relative(s.relative_error), lambda s: s.relative_error, spare=2),
        Column(metric.column, metric.short,
               f"Mean over seeds of the {metric.title} on held-out data; {direction} is better.",
               lambda s: q.plain(s.mean, d), lambda s: s.mean),
        Column("difference from fp32", "minus\nfp32",
               f"Mean over seeds, each minus fp32 from the same seed, {unit}; marked where that is evidence.",
               lambda s: q.signed(s.evidence.mean, d), lambda s: s.evidence.mean,
               lambda s: verdict(s.evidence, higher_is_better=metric.higher_is_better)),
        Column("95 % interval (+-)", "95 %\n+-", f"Half the interval, from paired seeds, {unit}.",
               lambda s: q.margin(s.evidence.margin, d), lambda s: s.evidence.margin, spare=1),
        *(_time_column(i, time.gigabits) for i, time in enumerate(comparison.scores[0].predicted)),
    ]  # fmt: skip


def _fewer(score: CodecScore) -> float:
    return score.bytes_wide / score.bytes_sent


def _time_column(i: int, gigabits: float) -> Column[CodecScore]:
    return Column(
        f"predicted ms per step at {gigabits:g} Gbit/s", f"pred.\nms at\n{gigabits:g}\nGbit/s",
        f"Time of a step, predicted for links of {gigabits:g} Gbit/s, one for each process; not measured.",
        lambda s: milliseconds(s.predicted[i].seconds), lambda s: 1e3 * s.predicted[i].seconds,
    )  # fmt: skip


def milliseconds(seconds: float) -> str:
    """Write seconds as milliseconds, with three digits or more.

    >>> milliseconds(0.01234), milliseconds(1.2345), milliseconds(0.0000012)
    ('12.3', '1234', '0.00')
    """
    value = 1e3 * seconds
    return q.three_digits(value) if value >= 1 else f"{value:.2f}"


def about_codecs(comparison: CodecComparison) -> str:
    """Say what was trained, in a line."""
    seeds = "1 seed" if len(comparison.seeds) == 1 else f"{len(comparison.seeds)} seeds"
    return (
        f"{comparison.processes} processes, {comparison.parameters} values in each exchange,"
        f" {comparison.steps} steps, {seeds}"
    )


def evidence_of_codecs(comparison: CodecComparison) -> str:
    """Say what the marks mean."""
    return evidence_sentence([(s.codec, s.evidence) for s in comparison.scores if s.codec != WIDE])


def predicted_from(comparison: CodecComparison) -> str:
    """Say that times are a prediction, and what from."""
    return (
        "Times are predicted, not measured: from the compute of a step without exchange,"
        f" {milliseconds(comparison.compute_seconds)} ms for one process's samples on one thread of this"
        " machine; from the rates at which that thread rounds, adds and unpacks in each codec; and from the"
        f" bytes over one link for each process, {comparison.latency_us:g} us for each message. Nothing"
        " overlaps."
    )


def fastest_sentence(comparison: CodecComparison) -> str:
    """Name the codec predicted fastest for each speed of links, of those that are not known to lose."""
    metric = codec_metric(comparison)
    good = [
        s
        for s in comparison.scores
        if verdict(s.evidence, higher_is_better=metric.higher_is_better) != "worse"
    ]
    if len(comparison.seeds) < 2 or not good:
        return ""
    named = [
        f"{time.gigabits:g} Gbit/s {q.visible(min(good, key=lambda s: s.predicted[i].seconds).codec)}"
        for i, time in enumerate(comparison.scores[0].predicted)
    ]
    return f"Fastest as predicted, of the codecs without evidence of a loss: at {', at '.join(named)}."


def by_bytes(scores: Sequence[CodecScore]) -> list[CodecScore]:
    """Return FP32's score first, and then the others from few bytes to many."""
    return sorted(scores, key=lambda s: (s.codec != WIDE, s.bytes_sent))
