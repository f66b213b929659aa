"""What the numbers say: which differences are evidence, and which formats nothing else beats."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fewbits.errors import ArgumentError
from fewbits.records import CheckpointReport, MatrixScore, TaskScore
from fewbits.report.quantities import bits, size, visible

Score = TypeVar("Score")


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


METRICS = {
    "nll": Metric("negative log-likelihood", "NLL (nats/byte)", "NLL", "nats/byte", "nats/byte", 4, False),
    "accuracy": Metric("accuracy", "accuracy (%)", "acc.", "%", "percentage points", 2, True),
}


def metric_of(score: TaskScore) -> Metric:
    """Look up the metric of a score.

    Raises:
        ArgumentError: The report does not know the metric.
    """
    if score.metric not in METRICS:
        known = ", ".join(METRICS)
        raise ArgumentError(
            f"a score of task {score.task!r} has the metric {score.metric!r}: expected one of {known}"
        )
    return METRICS[score.metric]


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
    """Difference from FP32, turned so that higher is better."""
    return score.difference if metric_of(score).higher_is_better else -score.difference


def beyond_spread(score: TaskScore) -> bool:
    """Whether the difference from FP32 is larger than the seed spread: more than a seed alone explains.

    A NaN difference counts: the format broke the model. With one seed nothing can be said, so nothing counts.
    """
    return len(score.baseline) > 1 and not abs(score.difference) <= score.spread


def trained_beyond_spread(score: TaskScore) -> bool:
    """Whether training in the format differs by more than a seed alone explains; as `beyond_spread`."""
    if score.trained_difference is None or score.trained_spread is None or len(score.trained) < 2:
        return False
    return not abs(score.trained_difference) <= score.trained_spread


def spread_sentence(scores: Sequence[TaskScore]) -> str:
    """Say what a different seed alone does, and what that means for the differences of one task."""
    score, metric = scores[0], metric_of(scores[0])
    if len(score.baseline) < 2:
        return "One seed ran: the seed spread is unknown, so no difference here is evidence. Use --seeds 3."
    moves = f"{score.spread:.{metric.digits}f} {metric.difference_unit}"
    return (
        f"Seed spread: FP32 alone moves by {moves} over {len(score.baseline)} seeds. "
        "A difference smaller than that is no evidence."
    )


def narrowest_sentence(scores: Sequence[TaskScore]) -> str:
    """Name the narrowest format whose difference stays within the seed spread; "" if nobody can say."""
    narrow = [s for s in scores if s.format != "fp32"]
    if len(scores[0].baseline) < 2 or not narrow:
        return ""
    within = [s for s in narrow if not beyond_spread(s)]
    if not within:
        return "No format narrower than FP32 stays within it."
    best = min(within, key=lambda s: (s.bits_per_value, -quality(s)))
    return f"Narrowest format within it: {visible(best.format)}, {bits(best.bits_per_value)} bits per value."


def totals_sentence(report: CheckpointReport) -> str:
    """Say what the whole checkpoint would weigh if every proposal is followed."""
    before, after = report.stored_bytes, report.proposed_bytes
    times = f", {before / after:.2f} times less" if 0 < after < before else ""
    return f"The whole checkpoint would weigh {size(after)} instead of {size(before)}{times}."


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the points (cost, quality) that no other point beats, from low cost to high.

    One point beats another when it costs no more, is no worse, and differs in one of the two. Points with a
    NaN are never on the front.
    """
    front: list[int] = []
    known = [i for i, (cost, good) in enumerate(points) if not math.isnan(cost + good)]
    for i in sorted(known, key=lambda i: (points[i][0], -points[i][1])):
        if not front or points[i][1] > points[front[-1]][1] or points[i] == points[front[-1]]:
            front.append(i)
    return front
