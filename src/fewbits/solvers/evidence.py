"""What is known about a matrix for next to nothing, and which factorizations it speaks for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fewbits.solvers.factors import Factors, balanced, stretches

_MILD = 2.0**20  # between the largest and the smallest sum of a row: float32 holds all of it
_FEWEST = 16
_SAMPLED = 4  # of so many rows and columns one is looked at: a sixtieth of the arithmetic
_MOST_SAMPLED = 2000
_FITTED = 200  # pivots that a line is laid through, at least: fewer scatter too much
_UNLUCKY = 2  # smallest pivots that mean nothing: a random block is near to singular now and then
# Where refinement stops being worth it on random matrices of 1000 to 4000 unknowns, all five modes of
# LAPACK's DLATMS and conditions from 1e4 to 1e16: the share of the roundoff, in logarithms, that the
# carried-on line may fall by.
_SHARE = 0.55


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


def sampled_pivots(a: torch.Tensor) -> torch.Tensor:
    """Return the pivots of every fourth row and column of (n, n), balanced, in float32 or complex64.

    A block on the diagonal tells more than as many whole columns: its pivots fall as all of them will, where
    partial pivoting on whole columns keeps the first ones large.
    """
    count = min(max(len(a) // _SAMPLED, 4 * _FEWEST), _MOST_SAMPLED, len(a))
    chosen = torch.arange(count) * len(a) // max(1, count)
    block = a[chosen][:, chosen]
    rows, columns = balanced(block)
    low = (rows[:, None] * block * columns).to(torch.complex64 if a.is_complex() else torch.float32)
    found: torch.Tensor = torch.linalg.lu_factor_ex(low)[0].diagonal()
    return found


def doubt(pivots: torch.Tensor, n: int, roundoff: float) -> str:
    """Return why factors with this roundoff are not worth trying; "" where nothing speaks against them.

    Singular values that fall steadily show in pivots that do: the line through the later ones is carried on
    to the last. One small singular value does not show, and does no harm: GMRES removes it.

    Args:
        pivots: of a part of a matrix that is about balanced.
        n: the unknowns of the whole.
        roundoff: of the narrowest operands.
    """
    count = len(pivots)
    if count < _FEWEST:
        return ""
    sizes = pivots.abs().double()
    largest = float(sizes.max())
    if not math.isfinite(largest) or float(sizes.min()) == 0:
        return f"one of {count} pivots is zero or overflows"
    logs = torch.log2(sizes / largest)
    least, allowed = float(logs.sort()[0][_UNLUCKY]), math.log2(roundoff)
    if least < allowed + math.log2(n) / 2:  # roundoffs add up like the steps of a random walk
        return f"{_UNLUCKY + 1} of {count} pivots are 2^{least:.0f} of the largest or less"
    start = count - min(count, max(count // 2, _FITTED))
    places = torch.arange(start, count, dtype=torch.float64)
    later = logs[start:]
    middle = float(places.mean())
    slope = float(((places - middle) * (later - later.mean())).sum() / (places - middle).square().sum())
    last = float(later.mean()) + slope * (n - middle)
    if last < _SHARE * allowed:
        return f"{count} pivots fall as if the last would be 2^{last:.0f} of the largest"
    return ""


def condition(norm: float, factors: Factors, like: torch.Tensor) -> float:
    """Return |A| |A^-1 v| for the signs v that a solve with ones suggests: a lower bound, often close."""
    n = len(like)
    y = factors.solve(torch.ones(n, 1, dtype=like.dtype))
    signs = torch.where(y.real >= 0, 1.0, -1.0).to(like.dtype)
    return norm * max(float(y.abs().max()), float(factors.solve(signs).abs().max()))
