"""What is known about a matrix for next to nothing, and which factorizations it speaks for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fewbits.solvers.factors import Factors, stretches

_MILD = 2.0**20  # between the largest and the smallest sum of a row: float32 holds all of it
_FEWEST = 16
# Where refinement stops being worth it on random matrices of 500 and 1000 unknowns, all five modes of
# LAPACK's DLATMS and conditions from 1e4 to 1e16: the share of the roundoff, in logarithms, that the
# carried-on line may fall by, and the bits that must be left above it where a pivot is seen to be small.
_SHARE = 0.55
_MARGIN = 4


@dataclass(frozen=True)
class Sizes:
    """The sums of magnitudes of the rows of A, (n,) float64, read in one pass."""

    rows: torch.Tensor

    @property
    def norm(self) -> float:
        """The infinity norm of A; not finite where A or a sum is not."""
        return float(self.rows.max()) if len(self.rows) else 0.0

    @property
    def mild(self) -> bool:
        """Whether float32 holds the rows as they are."""
        least = float(self.rows.min())
        return least * _MILD >= self.norm and least > 2.0**-30 and self.norm < 2.0**60


def sizes(a: torch.Tensor) -> Sizes:
    """Return the sizes of a (n, n) matrix."""
    # A product takes half the time of torch.linalg.vector_norm along rows; a few rows at a time, what lies
    # between stays in the cache.
    ones = torch.ones(len(a), dtype=torch.float64)
    return Sizes(torch.cat([a[part].abs() @ ones for part in stretches(a)]))


def doubt(pivots: torch.Tensor, n: int, roundoff: float) -> str:
    """Return why factors with this roundoff are not worth trying; "" where nothing speaks against them.

    Singular values that fall steadily show in pivots that do: the line through the later ones is carried on
    to the last. One small singular value does not show, and does no harm: GMRES removes it.

    Args:
        pivots: the first ones of a matrix that is about balanced.
        n: how many there are in all.
        roundoff: of the narrowest operands.
    """
    count = len(pivots)
    if count < _FEWEST:
        return ""
    sizes = pivots.abs().double()
    largest = float(sizes.max())
    if not math.isfinite(largest) or float(sizes.min()) == 0:
        return f"one of the first {count} pivots is zero or overflows"
    logs = torch.log2(sizes / largest)
    least, allowed = float(logs.min()), math.log2(roundoff)
    if least < allowed + _MARGIN:
        return f"one of the first {count} pivots is 2^{least:.0f} of the largest"
    places = torch.arange(count // 2, count, dtype=torch.float64)
    later = logs[count // 2 :]
    middle = float(places.mean())
    slope = float(((places - middle) * (later - later.mean())).sum() / (places - middle).square().sum())
    last = float(later.mean()) + slope * (n - middle)
    if last < _SHARE * allowed:
        return f"the first {count} pivots fall as if the last would be 2^{last:.0f} of the largest"
    return ""


def condition(norm: float, factors: Factors, like: torch.Tensor) -> float:
    """Return |A| |A^-1 v| for the signs v that a solve with ones suggests: a lower bound, often close."""
    n = len(like)
    y = factors.solve(torch.ones(n, 1, dtype=like.dtype))
    signs = torch.where(y.real >= 0, 1.0, -1.0).to(like.dtype)
    return norm * max(float(y.abs().max()), float(factors.solve(signs).abs().max()))
