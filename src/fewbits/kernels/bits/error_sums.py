"""What rounding did to the values of an array, as sums and counts, and how an array is cut to add them."""

from __future__ import annotations

from typing import NamedTuple

from fewbits.formats import Format

LANES = 8  # sums that stand side by side: one register of AVX-512
MOST_TOGETHER = 2048  # values whose sums are added in one go; native/jobs/tally.hpp has both numbers


class ErrorSums(NamedTuple):
    """Of the finite values of an array."""

    signal: float = 0.0  # sum of squares of the values
    noise: float = 0.0  # sum of squares of the errors
    relative: float = 0.0  # sum of errors over magnitudes, of the values that are not zero
    largest_relative: float = 0.0  # of these the largest
    nonzero: int = 0  # values that are not zero
    flushed: int = 0  # those of them that became zero
    saturated: int = 0  # values beyond the largest magnitude that they could have kept

    def add(self, others: ErrorSums) -> ErrorSums:
        """Return the sums of the values of both."""
        return ErrorSums(
            signal=self.signal + others.signal,
            noise=self.noise + others.noise,
            relative=self.relative + others.relative,
            largest_relative=max(self.largest_relative, others.largest_relative),
            nonzero=self.nonzero + others.nonzero,
            flushed=self.flushed + others.flushed,
            saturated=self.saturated + others.saturated,
        )


def part_of(format: Format) -> int | None:
    """Return how many values of a line are added in one go, or None where blocks are too long for that.

    It is a multiple of the lanes and of the values that share a number, unless a whole line shares them.
    """
    unit = 1
    for group in format.groups.shared:
        if isinstance(group.size, int):
            unit = max(unit, group.size)  # sizes of a format divide each other
    return MOST_TOGETHER // (LANES * unit) * LANES * unit or None
