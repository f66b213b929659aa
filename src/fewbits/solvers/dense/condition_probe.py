"""A cheap test, from a sample of its entries, of whether to factorize a matrix in a narrow format."""

from __future__ import annotations

import math

import torch

from fewbits.kernels.arrays import dense
from fewbits.solvers.dense.factors import balanced, scaled_to

_FEWEST = 16
_SAMPLED = 4  # every fourth row and column is sampled: a sixtieth of the arithmetic
_MOST_SAMPLED = 2000
_FITTED = 200  # fewest pivots for a line fit: fewer scatter too much
_UNLUCKY = 2  # number of smallest pivots to ignore: a random block is sometimes near singular
# The extrapolated last pivot may be as small as roundoff**0.55. Beyond that refinement is not worth its time,
# as measured on random matrices of 1000 to 4000 unknowns, all five modes of LAPACK's DLATMS, and condition
# numbers from 1e4 to 1e16.
_SHARE = 0.55


def sampled_pivots(a: torch.Tensor) -> torch.Tensor:
    """Return the pivots of every fourth row and column of (n, n), balanced, in float32 or complex64.

    A diagonal block predicts more than the same number of full columns: its pivots fall like those of the
    whole matrix, while partial pivoting on full columns keeps the first pivots large.
    """
    step = max(1, min(_SAMPLED, len(a) // (4 * _FEWEST)), -(-len(a) // _MOST_SAMPLED))
    count = max(len(a) // _SAMPLED, 4 * _FEWEST)
    block = a[::step, ::step][:count, :count].contiguous()
    rows, columns = balanced(block)
    low = scaled_to(torch.complex64 if a.is_complex() else torch.float32, block, rows, columns)
    if a.is_complex() or a.device.type != "cpu":
        pivots: torch.Tensor = torch.linalg.lu_factor_ex(low)[0].diagonal()
        return pivots
    dense.factorize_lu(low.numpy())
    return low.diagonal().clone()  # a view would keep the whole sample


def doubt(pivots: torch.Tensor, n: int, roundoff: float) -> str:
    """Return why factors with this roundoff are not worth trying; "" if they are.

    Steadily decreasing singular values show as steadily decreasing pivots: a line fitted to the logarithms of
    the later pivots is extrapolated to the last one. A single small singular value does not show, but does no
    harm, because GMRES removes it.

    Args:
        pivots: those of a sample of a roughly balanced matrix.
        n: unknowns of the full matrix.
        roundoff: unit roundoff of the narrowest operands.
    """
    count = len(pivots)
    if count < _FEWEST:
        return ""
    sizes = pivots.abs().double().cpu()  # a few hundred numbers
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
