"""What is known about a matrix for next to nothing, and which factorizations it speaks for."""

from __future__ import annotations

import math

import torch

from fewbits.solvers.dense.factors import balanced

_FEWEST = 16
_SAMPLED = 4  # of so many rows and columns one is looked at: a sixtieth of the arithmetic
_MOST_SAMPLED = 2000
_FITTED = 200  # pivots that a line is laid through, at least: fewer scatter too much
_UNLUCKY = 2  # smallest pivots that mean nothing: a random block is near to singular now and then
# Where refinement stops being worth it on random matrices of 1000 to 4000 unknowns, all five modes of
# LAPACK's DLATMS and conditions from 1e4 to 1e16: the share of the roundoff, in logarithms, that the
# carried-on line may fall by.
_SHARE = 0.55


def sampled_pivots(a: torch.Tensor) -> torch.Tensor:
    """Return the pivots of every fourth row and column of (n, n), balanced, in float32 or complex64.

    A block on the diagonal tells more than as many whole columns: its pivots fall as all of them will, where
    partial pivoting on whole columns keeps the first ones large.
    """
    step = max(1, min(_SAMPLED, len(a) // (4 * _FEWEST)), -(-len(a) // _MOST_SAMPLED))
    count = max(len(a) // _SAMPLED, 4 * _FEWEST)
    block = a[::step, ::step][:count, :count].contiguous()
    rows, columns = balanced(block)
    low = (rows[:, None] * block * columns).to(torch.complex64 if a.is_complex() else torch.float32)
    pivots: torch.Tensor = torch.linalg.lu_factor_ex(low)[0].diagonal()
    return pivots


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
