"""The columns about models in several formats."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fewbits.records import TaskScore
from fewbits.report import quantities as q
from fewbits.report.columns.column import BITS, FLUSHED, FORMAT, QSNR, SATURATED, Column
from fewbits.report.judgement import Metric, metric_of, task_verdict, verdict


def _trained_difference(score: TaskScore) -> float:
    return math.nan if score.trained_difference is None else score.trained_difference


def _proxy(score: TaskScore) -> float:
    return math.nan if score.area_memory_proxy is None else score.area_memory_proxy


def task_columns(scores: Sequence[TaskScore]) -> list[Column[TaskScore]]:
    """Build the columns of the table of one task; training has one where it was measured."""
    metric = metric_of(scores[0])
    d, unit = metric.digits, _in_unit(metric)
    direction = "higher" if metric.higher_is_better else "lower"
    samples, text = scores[0].samples, scores[0].samples != "seeds"
    data = "the data" if text else "held-out data"
    mean = f"Mean over {samples} of the {metric.title} on {data}; {direction} is better."
    own = "each against FP32 on the same" if text else "each against its own FP32 model"
    difference = f"Mean over {samples}, {own}{unit}; marked where that is evidence."
    proxy = "Arithmetic area times memory relative to FP8 E4M3: a proxy from bit counts, not from synthesis."
    trained = [_trained_column(metric)] if scores[0].trained else []
    activation: list[Column[TaskScore]] = [] if all(math.isnan(s.activation_qsnr_db) for s in scores) else [
        Column("activation QSNR (dB)", "act.\nQSNR\ndB", QSNR,
               lambda s: q.decibels(s.activation_qsnr_db), lambda s: s.activation_qsnr_db, spare=3),
    ]  # fmt: skip
    return [
        Column("format", "format", FORMAT, lambda s: q.visible(s.format), lambda s: s.format,
               is_name=True),
        Column("bits per value", "bits/\nvalue", BITS,
               lambda s: q.bits(s.bits_per_value), lambda s: s.bits_per_value),
        Column("model size", "model\nsize", "All parameters: the cast ones in this format, the rest in FP32.",
               lambda s: q.size(s.model_bytes), lambda s: s.model_bytes, spare=2),
        Column(metric.column, metric.short, mean, lambda s: q.plain(s.mean, d), lambda s: s.mean),
        Column("difference from FP32", "minus\nFP32", difference,
               lambda s: q.signed(s.difference, d), lambda s: s.difference, task_verdict),
        *trained,
        *_text_columns(scores),
        Column("95 % interval (+-)", "95 %\n+-", f"Half the interval, from paired {samples}{unit}.",
               lambda s: q.margin(s.evidence.margin, d), lambda s: s.evidence.margin, spare=1),
        Column("weight QSNR (dB)", "wt.\nQSNR\ndB", QSNR,
               lambda s: q.decibels(s.weight_qsnr_db), lambda s: s.weight_qsnr_db),
        *activation,
        Column("saturated (%)", "sat.\n%", SATURATED,
               lambda s: q.percent(s.saturated_fraction), lambda s: s.saturated_fraction, spare=6),
        Column("flushed (%)", "flush\n%", FLUSHED,
               lambda s: q.percent(s.flushed_fraction), lambda s: s.flushed_fraction, spare=5),
        Column("area x memory (proxy)", "area\nx mem\nproxy", proxy,
               lambda s: "-" if math.isnan(_proxy(s)) else f"{_proxy(s):.2f}", _proxy, spare=4),
    ]  # fmt: skip


def _in_unit(metric: Metric) -> str:
    return f", in {metric.difference_unit}" if metric.difference_unit else ""


def _trained_column(metric: Metric) -> Column[TaskScore]:
    def judged(score: TaskScore) -> str:
        return verdict(score.trained_evidence, higher_is_better=metric.higher_is_better)

    about = (
        "Mean over seeds, trained from scratch in this format and evaluated without a cast, each against FP32"
        f" trained by the same loop{_in_unit(metric)}; marked where that is evidence."
    )
    return Column(
        "trained in it, minus FP32", "trained\nin it", about,
        lambda s: q.signed(_trained_difference(s), metric.digits), _trained_difference, judged,
    )  # fmt: skip


def _text_columns(scores: Sequence[TaskScore]) -> list[Column[TaskScore]]:
    """Return what is known of models of text only."""
    columns = []
    if scores[0].perplexity is not None:
        about = "Exponential of the mean negative log-likelihood of a token; lower is better."
        columns.append(
            Column("perplexity", "perpl.", about, lambda s: q.plain(_perplexity(s), 3), _perplexity)
        )
    if scores[0].logit_error is not None:
        about = "Root mean square of the logits' error over that of the logits in FP32, in percent."
        columns.append(
            Column("logit error (%)", "logit\nerr. %", about, lambda s: q.percent(_error(s)), _error)
        )
    return columns


def _perplexity(score: TaskScore) -> float:
    return math.nan if score.perplexity is None else score.perplexity


def _error(score: TaskScore) -> float:
    return math.nan if score.logit_error is None else score.logit_error
