"""The rules by which times to quality become a result, each a small function of plain numbers.

They are those of MLPerf Training (mlcommons/training_policies): what counts is the time to a quality, seeds
are distinct, the fastest and the slowest of N runs are dropped, and no result may take fewer samples than the
reference explains. What is computed by them here is no MLPerf result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev

from fewbits.errors import ArgumentError

FEWEST = 3  # runs: behind the fastest and the slowest one has to be left
LEVEL = 0.05  # a convergence that chance explains less often than this is too fast
_TOLERANCE = 1e-10  # relative, of the least mean that is accepted


def check_seeds(seeds: Sequence[int], allowed: Sequence[int] = ()) -> None:
    """Refuse seeds that are not distinct: a run that is counted twice says nothing new.

    Args:
        seeds: of the runs.
        allowed: those that a benchmark allows; none: all.

    Raises:
        ArgumentError: a seed is repeated, or is not allowed.
    """
    repeated = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if repeated:
        raise ArgumentError(f"seed {repeated[0]} is repeated; each run needs a seed of its own")
    wrong = [seed for seed in seeds if allowed and seed not in allowed]
    if wrong:
        raise ArgumentError(f"seed {wrong[0]} is not allowed; take some of {', '.join(map(str, allowed))}")


def trimmed(values: Sequence[float]) -> list[float]:
    """Return the values in order without the smallest and the largest.

    Raises:
        ArgumentError: there are fewer than three, or one is NaN, which has no place in an order.
    """
    if len(values) < FEWEST:
        raise ArgumentError(
            f"{len(values)} runs; expected {FEWEST} or more, as the fastest and the slowest are dropped"
        )
    if any(map(math.isnan, values)):
        raise ArgumentError("a run has NaN; give infinity for one that missed its target")
    return sorted(values)[1:-1]


def olympic_mean(values: Sequence[float]) -> float:
    """Return the mean without the fastest and the slowest run; infinite where two runs are.

    A run that did not reach its target is infinite: one counts as the slowest, two make the result invalid.

    >>> olympic_mean([9.0, 5.0, 6.0, 7.0, float("inf")])
    7.333333333333333
    """
    return fmean(trimmed(values))


def score(values: Sequence[float], runs: int) -> float:
    """Return the result of runs in the order in which they were made; infinite: it is invalid.

    Args:
        values: seconds to the target, infinite where it was missed.
        runs: N, that a result takes. Of more than N runs the result is the median over the windows of N
            runs in a row: nobody may choose the best N.

    Raises:
        ArgumentError: fewer than N runs, or N below three.

    >>> score([5.0, 6.0, 7.0, 8.0], 3)
    6.5
    """
    if len(values) < runs:
        raise ArgumentError(f"{len(values)} runs where a result takes {runs}; make the others too")
    return median(olympic_mean(values[i : i + runs]) for i in range(len(values) - runs + 1))


@dataclass(frozen=True)
class ReferencePoint:
    """How many samples the reference needs to converge, at one size of the batch."""

    batch: float
    mean: float
    deviation: float  # standard deviation
    runs: int  # behind the mean and the deviation

    def least_mean(self, runs: int) -> float:
        """Return the smallest mean of ``runs`` runs that the test does not refuse.

        Where the reference has no deviation, that is its mean.
        """
        low, high = 0.0, self.mean
        while high - low > _TOLERANCE * self.mean:
            middle = (low + high) / 2
            if one_sided_p(middle, self, runs) > LEVEL:
                high = middle
            else:
                low = middle
        return high

    def largest_gain(self, runs: int) -> float:
        """Return by which part the reference may converge later than the smallest accepted mean does."""
        return self.mean / self.least_mean(runs) - 1


def reference_point(batch: float, samples: Sequence[float]) -> ReferencePoint:
    """Return the reference of some runs: mean and deviation of what is left without the first and the last.

    The written rules take both from the trimmed runs, and their examples agree. (The checker in Python takes
    the deviation of all runs.)

    Args:
        batch: samples in a step.
        samples: to converge, of each run; the rules ask for twice as many runs as a result takes.

    Raises:
        ArgumentError: fewer than three runs, or one that did not converge.
    """
    kept = trimmed(samples)
    if not all(map(math.isfinite, samples)):
        raise ArgumentError("a run of the reference did not converge; a reference is made of runs that did")
    return ReferencePoint(batch, fmean(kept), pstdev(kept), len(kept))


def no_reference(samples: Sequence[float], runs: int) -> str:
    """Say why runs are no reference for a result of ``runs`` runs; "" where they are.

    Fewer than twice as many, or without a deviation, would refuse equal recipes far too often.

    >>> no_reference([64, 96, 64], 3)
    '3 runs of fp32 where the test takes 6, twice as many as a result'
    """
    if len(samples) < 2 * runs:
        return f"{len(samples)} runs of fp32 where the test takes {2 * runs}, twice as many as a result"
    if not all(map(math.isfinite, samples)):
        return "a run of fp32 missed the target, and a reference is made of runs that reach it"
    if pstdev(trimmed(samples)) == 0:
        return "all runs of fp32 but its ends took the same samples, which tell no deviation"
    return ""


def interpolated(batch: float, below: ReferencePoint, above: ReferencePoint) -> ReferencePoint:
    """Return the reference at a batch between two others, on straight lines.

    All runs of the reference count here, with those that were dropped, as in the example of the rules.

    Raises:
        ArgumentError: the batch does not lie between them.
    """
    if not below.batch < batch < above.batch:
        raise ArgumentError(
            f"batch={batch:g} is not between {below.batch:g} and {above.batch:g}, whose points are known"
        )
    part = (batch - below.batch) / (above.batch - below.batch)
    return ReferencePoint(
        batch,
        below.mean + part * (above.mean - below.mean),
        below.deviation + part * (above.deviation - below.deviation),
        min(below.runs, above.runs) + 2,
    )


def one_sided_p(mean: float, reference: ReferencePoint, runs: int) -> float:
    """Return how often chance gives a mean so small, by Student's test of equal variances.

    The deviation of the reference is taken for both, as the rules do: few runs do not tell their own.

    Args:
        mean: samples to converge, of ``runs`` runs.
        reference: its mean, deviation and number of runs.
        runs: behind the mean; the fastest and the slowest are not among them.
    """
    if reference.deviation == 0:
        return 0.0 if mean < reference.mean else 1.0
    from scipy import special

    # With one deviation for both, the pooled variance is its square.
    error = reference.deviation * math.sqrt(1 / runs + 1 / reference.runs)
    return float(special.stdtr(runs + reference.runs - 2, (mean - reference.mean) / error))


def converges_too_fast(samples: Sequence[float], reference: ReferencePoint) -> bool:
    """Return whether runs converge in so few samples that they do other work than the reference.

    Args:
        samples: to converge, of each run; infinite where it did not.
        reference: at the same size of the batch.

    Raises:
        ArgumentError: fewer than three runs.
    """
    kept = trimmed(samples)
    mean = fmean(kept)
    return math.isfinite(mean) and one_sided_p(mean, reference, len(kept)) <= LEVEL
