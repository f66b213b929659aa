"""Whether a difference over seeds is evidence: a paired interval, no finer than the metric itself.

Both models of a pair start from one seed, so what the seed does to both is not in their difference. The
interval is Student's for the mean of paired differences. A few test images that flip tell less than their
agreement over two or three seeds suggests: flips are counts, so the variance of their sum is taken to be at
least their number, as in McNemar's test where all flips go one way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import copysign, frexp, inf, isfinite, isnan, ldexp, nan, sqrt
from numbers import Real
from statistics import fmean, variance
from typing import Any

from fewbits.errors import ArgumentError

__all__ = ["Evidence", "paired"]

LEVEL = 0.95  # confidence of the intervals: one in twenty shows a difference where there is none
_MOST = 1000  # pairs up to which `needed` is computed


@dataclass(frozen=True)
class Evidence:
    """The mean of paired differences, and how far it can be trusted."""

    pairs: int
    mean: float
    low: float  # of the interval at LEVEL; nan with one pair, or where a difference is not finite
    high: float
    needed: int | None  # pairs for such differences to be evidence; None: unknown, or more than a thousand

    @property
    def differs(self) -> bool:
        """Whether zero is outside the interval; a model that broke differs. One pair is no evidence."""
        return self.pairs > 1 and not (self.low <= 0 <= self.high)

    @property
    def margin(self) -> float:
        """Half of the interval; nan where there is none."""
        return (self.high - self.low) / 2


def paired(values: Sequence[float], baseline: Sequence[float], resolution: float = 0.0) -> Evidence:
    """Return what paired values say about the mean difference. Two that broke alike do not differ.

    Args:
        values: of a metric, one per seed.
        baseline: of the same seeds.
        resolution: the smallest step of the metric, such as that of one test image; 0 for a continuous one.

    Raises:
        ArgumentError: no pairs, values without a partner, what is no number, or a resolution that is below
            zero or not finite.
    """
    left, right = _numbers("values", values), _numbers("baseline", baseline)
    n = len(left)
    if not n or n != len(right):
        raise ArgumentError(
            f"{n} values and {len(right)} of a baseline were given; expected pairs, at least one"
        )
    is_number: bool = isinstance(resolution, Real)
    if not (is_number and 0 <= resolution < inf):
        raise ArgumentError(f"resolution={resolution!r:.60}; expected the smallest step of the metric, or 0")
    differences, exponent = _differences(left, right)
    mean = fmean(differences) if all(map(isfinite, differences)) else _broken(differences)
    if n < 2 or not isfinite(mean):
        return Evidence(n, _times(mean, exponent), nan, nan, None)
    flips = _times(float(resolution), -exponent) * fmean(map(abs, differences))
    deviation = sqrt(max(variance(differences), flips))
    factors = _factors(max(n, _MOST))
    margin = factors[n] * deviation
    needed = next((m for m, factor in enumerate(factors) if m > 1 and factor * deviation < abs(mean)), None)
    middle, low, high = (_times(x, exponent) for x in (mean, mean - margin, mean + margin))
    return Evidence(n, middle, low, high, needed)


def _numbers(name: str, given: Any) -> list[float]:
    """Return numbers of a sequence, array or tensor as floats of Python."""
    try:
        listed = given.tolist() if hasattr(given, "tolist") else list(given)
        if all(isinstance(value, Real) for value in listed):
            return [float(value) for value in listed]
    except (TypeError, OverflowError):
        pass
    shown = " ".join(repr(given).split())
    raise ArgumentError(f"{name}={shown:.60}; expected numbers of float64's range, one for each seed")


def _differences(values: Sequence[float], baseline: Sequence[float]) -> tuple[list[float], int]:
    """Return the differences divided by 2^e, and e: neither they nor their squares leave the range."""
    half = int(max((abs(x) for x in (*values, *baseline) if isfinite(x)), default=0.0) > 2.0**1022)
    found = [
        _difference(ldexp(value, -half), ldexp(base, -half))
        for value, base in zip(values, baseline, strict=True)
    ]
    exponent = frexp(max((abs(d) for d in found if isfinite(d)), default=0.0))[1]
    return [ldexp(d, -exponent) for d in found], exponent + half


def _times(x: float, exponent: int) -> float:
    """Return ``x`` times 2^e; what is beyond float64 is infinite."""
    try:
        return ldexp(x, exponent)
    except OverflowError:
        return copysign(inf, x)


def _difference(value: float, base: float) -> float:
    """Return the difference; 0 of two NaN, or of the same infinity twice."""
    return 0.0 if value == base or (isnan(value) and isnan(base)) else value - base


def _broken(differences: Sequence[float]) -> float:
    """Return the mean where some differences are not finite."""
    odd = {d for d in differences if not isfinite(d)}
    return odd.pop() if len(odd) == 1 else nan


@cache
def _factors(most: int) -> tuple[float, ...]:
    """Return half the interval over the standard deviation for 0, 1, 2, ... ``most`` pairs."""
    import numpy as np
    from scipy import stats

    pairs = np.arange(2, most + 1)
    return inf, inf, *(stats.t.ppf((1 + LEVEL) / 2, pairs - 1) / np.sqrt(pairs)).tolist()
