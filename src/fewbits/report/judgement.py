"""Conclusions from scores: which differences are significant, and what a checkpoint would weigh."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fewbits.errors import ArgumentError
from fewbits.evidence import LEVEL, Evidence
from fewbits.records import CheckpointReport, MatrixScore, TaskScore
from fewbits.report.quantities import bits, decibels, plain, size, visible

Score = TypeVar("Score")
_SHORTEST = 4  # names in a sentence
_NAMED = 4  # matrices that stay wide, in another


@dataclass(frozen=True)
class Metric:
    """How a metric of a task is written and which direction is better."""

    title: str
    column: str  # header on the page
    short: str  # header in the terminal, at most six letters: 80 columns hold eleven numbers
    unit: str
    difference_unit: str
    digits: int
    higher_is_better: bool

    @property
    def heading(self) -> str:
        """The title, and the unit of values that have one."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


METRICS = {
    "nll": Metric("negative log-likelihood", "NLL (nats/byte)", "NLL", "nats/byte", "nats/byte", 4, False),
    "image_nll": Metric(
        "negative log-likelihood", "NLL (nats/image)", "NLL", "nats/image", "nats/image", 4, False
    ),
    "loss": Metric("loss", "loss", "loss", "as its function returns it", "", 4, False),
    "accuracy": Metric("accuracy", "accuracy (%)", "acc.", "%", "percentage points", 2, True),
    "token_nll": Metric(
        "negative log-likelihood", "NLL (nats/token)", "NLL", "nats/token", "nats/token", 4, False
    ),
    "agreement": Metric("agreement with FP32", "agreement (%)", "agree.", "%", "percentage points", 2, True),
}


def metric_named(name: str, *, lower_is_better: bool) -> Metric:
    """Return how a metric is written; one that is not known is written as it is."""
    return METRICS.get(name) or Metric(name, name, name, "", "", 4, not lower_is_better)


def metric_of(score: TaskScore) -> Metric:
    """Return how the metric of a score is written."""
    return metric_named(score.metric, lower_is_better=score.lower_is_better)


def by_task(scores: Sequence[TaskScore]) -> dict[str, list[TaskScore]]:
    """Group scores by task in order of appearance; in each, FP32 first and then from few bits to many.

    Raises:
        ArgumentError: There are no scores.
    """
    groups = _grouped(scores, lambda s: s.task)
    return {task: sorted(group, key=_fp32_then_bits) for task, group in groups.items()}


def by_matrix(scores: Sequence[MatrixScore]) -> dict[str, list[MatrixScore]]:
    """Group scores by matrix in order of appearance; in each, from few bits to many.

    Raises:
        ArgumentError: There are no scores.
    """
    groups = _grouped(scores, lambda s: s.matrix)
    return {matrix: sorted(group, key=lambda s: s.bits_per_value) for matrix, group in groups.items()}


def _grouped(scores: Sequence[Score], subject: Callable[[Score], str]) -> dict[str, list[Score]]:
    """Return the scores of each subject in order of appearance; refuse none at all."""
    _require(scores)
    groups: dict[str, list[Score]] = {}
    for score in scores:
        groups.setdefault(subject(score), []).append(score)
    return groups


def _require(scores: Sequence[object]) -> None:
    if not scores:
        raise ArgumentError(
            "a report of no scores was asked for: expected at least one; measure a format first"
        )


def _fp32_then_bits(score: TaskScore) -> tuple[bool, float]:
    return score.format != "fp32", score.bits_per_value


def quality(score: TaskScore) -> float:
    """Difference from FP32, with the sign chosen so that higher is better."""
    return score.difference if metric_of(score).higher_is_better else -score.difference


def verdict(evidence: Evidence | None, *, higher_is_better: bool) -> str:
    """Return "worse" or "better" where the seeds are evidence of that, else ""; a NaN is worse."""
    if evidence is None or not evidence.differs:
        return ""
    gained = evidence.mean if higher_is_better else -evidence.mean
    return "better" if gained > 0 else "worse"


def task_verdict(score: TaskScore) -> str:
    """Judge a format on one task against FP32."""
    return verdict(score.evidence, higher_is_better=metric_of(score).higher_is_better)


def evidence_sentence(compared: Sequence[tuple[str, Evidence]], samples: str = "seeds") -> str:
    """Say what marks mean, and how many seeds the differences without a mark would take.

    Args:
        compared: names of what was compared, and what the seeds say; without the baseline itself.
        samples: what differences are paired over, in the plural.
    """
    if not compared:
        return ""
    pairs = max(evidence.pairs for _, evidence in compared)
    if pairs < 2 and samples != "seeds":
        return f"There is one of the {samples}, and no difference here is evidence. Give more text."
    if pairs < 2:
        return "One seed ran, and no difference here is evidence. Use --seeds 5."
    text = (
        f"* marks a difference whose {100 * LEVEL:g} % interval, paired over {pairs} {samples}, leaves zero"
        " out; of 20 that are none, one is marked."
    )
    short = [(e.needed, name) for name, e in compared if not e.differs and e.needed is not None]
    if short:
        seeds = [f"{visible(name)} {needed}" for needed, name in sorted(short)[:_SHORTEST]]
        text += f" {samples.capitalize()} that others would take, if they go on so: {', '.join(seeds)}."
    return text


def evidence_of(scores: Sequence[TaskScore]) -> str:
    """Say what the marks of one task mean."""
    if scores and ":" in scores[0].task and len(scores[0].values) == 1:  # MODULE:FUNCTION, which has one seed
        return "The model has one set of weights, and no difference here is evidence."
    return evidence_sentence(
        [(s.format, s.evidence) for s in scores if s.format != "fp32"],
        scores[0].samples if scores else "seeds",
    )


def narrowest_sentence(scores: Sequence[TaskScore]) -> str:
    """Name the narrowest format that is not known to lose, and what it may lose; "" with one seed."""
    others = [s for s in scores if s.format != "fp32"]
    if not others or others[0].evidence.pairs < 2:
        return ""
    good = [s for s in others if task_verdict(s) != "worse"]
    if not good:
        return "Every format narrower than FP32 loses."
    best = min(good, key=lambda s: (s.bits_per_value, -quality(s)))
    metric, evidence = metric_of(best), best.evidence
    worst = -evidence.low if metric.higher_is_better else evidence.high
    may = f"it may lose up to {plain(max(worst, 0.0) + 0.0, metric.digits)} {metric.difference_unit}".rstrip()
    named = f"{visible(best.format)}, {bits(best.bits_per_value)} bits per value"
    return f"Narrowest format without evidence of a loss: {named}; {may}."


def totals_sentence(report: CheckpointReport) -> str:
    """Say what the whole checkpoint would weigh if every proposal is followed, and what that would cost."""
    before, after = report.stored_bytes, report.proposed_bytes
    times = f", {before / after:.2f} times less" if 0 < after < before else ""
    return f"The whole checkpoint would weigh {size(after)} instead of {size(before)}{times}. {_cost(report)}"


def _cost(report: CheckpointReport) -> str:
    if report.model is not None:
        if report.output_qsnr_db == math.inf:
            return f"The outputs of {visible(report.model)} then stay as they are."
        return (
            f"The outputs of {visible(report.model)} then have {decibels(report.output_qsnr_db)} dB, measured"
            " with its weights rounded and nothing else."
        )
    if report.weight_qsnr_db == math.inf:
        return "No value of its tensors then changes."
    return (
        f"The mean QSNR of its tensors is then {decibels(report.weight_qsnr_db)} dB. That does not say what"
        " its outputs lose: tensors of one QSNR differ widely in what they do to a model. --model"
        " measures it."
    )


def left_wide_sentence(scores: Sequence[TaskScore]) -> str:
    """Name the matrices of a model of text that stay in FP32, with their shares; "" where none are known."""
    left = scores[0].left_wide
    if not left:
        return ""
    shown = ", ".join(f"{visible(name)} ({100 * share:.3g} %)" for name, share in left[:_NAMED])
    more = f", and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    return f"Stays in FP32, with its share of all values: {shown}{more}."
