"""An order of a matrix's columns under which an N:M pattern keeps more of its magnitude.

Channel Permutations for N:M Sparsity (Pool and Yu, NeurIPS 2021) poses the problem and searches greedily over
swaps or over stripes. Here swaps are annealed: each costs two passes over one column, so that a small matrix
has millions of them in a second.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fewbits.errors import ArgumentError, DataError, DTypeError
from fewbits.formats import Pattern
from fewbits.formats import pattern as read
from fewbits.kernels import native
from fewbits.kernels.swaps import LARGEST_SUM, swaps
from fewbits.sparsity.masks import mask

# Of a random swap's mean change: where annealing starts and ends. 0.2 and 0.02 do as well for some matrices.
_HOT, _COOL = 0.3, 0.03
_COLD = 0.9  # of all swaps; after them only those that gain are made
_MOVES_PER_COLUMN = 65536
_AT_ONCE = 16384  # swaps between two looks at the clock
_ROWS = 16384  # of more, so many are searched: they tell which columns fit together
_JUDGED = 0.1  # of the time: the speed of less says little


@dataclass(frozen=True)
class ColumnOrder:
    """What a search found. Magnitudes are sums of absolute values."""

    order: torch.Tensor  # int64 (columns,): w[:, order] is the matrix in the new order
    before: float  # kept of the columns as they lie
    after: float  # kept of them in the new order
    bound: float  # kept if each row were free to choose; no order can keep more
    moves: int  # swaps that were tried
    seconds: float

    @property
    def efficacy(self) -> float:
        """The share of what lay between ``before`` and ``bound`` that was gained, as the paper has it."""
        return (self.after - self.before) / (self.bound - self.before) if self.bound > self.before else 0.0


def find_order(
    w: torch.Tensor,
    pattern: str | Pattern = "2:4",
    *,
    seed: int = 0,
    moves: int | None = None,
    seconds: float = 10.0,
) -> ColumnOrder:
    """Search an order of the columns of ``w`` under which the pattern keeps more magnitude in its rows.

    Equal arguments give equal orders on every machine, as long as ``seconds`` is enough for all moves; where
    it is not, fewer are made and annealing is faster.

    Args:
        w: floating point, (rows, columns). Of more than 16384 rows a random choice is searched.
        pattern: ``N:M``, such as ``2:4``; groups of M lie along the rows.
        seed: of the random swaps.
        moves: swaps to try; default: 65536 for each column.
        seconds: at most this long.

    Raises:
        FormatError: no such pattern.
        ArgumentError: w has other axes, its columns are not a multiple of M, or a budget is not positive.
        DTypeError: w is not floating point.
        DataError: w holds a NaN or an infinity.

    >>> found = find_order(torch.tensor([[4.0, 3.0, 2.0, 0.0, 0.0, 0.0, 0.0, 1.0]]))
    >>> found.before, found.after, found.bound
    (8.0, 10.0, 10.0)
    """
    start = time.perf_counter()
    chosen = read(pattern)
    magnitudes = _checked(w, chosen)
    columns = magnitudes.shape[1]
    wanted = _MOVES_PER_COLUMN * columns if moves is None else moves
    if wanted < 1 or not seconds > 0:
        raise ArgumentError(f"moves={moves} and seconds={seconds}; expected a budget above zero")
    before, here = _kept(magnitudes, chosen), torch.arange(columns)
    bound = float(magnitudes.topk(columns * chosen.keep // chosen.group, dim=1).values.sum())
    if columns == chosen.group or bound <= before:
        return ColumnOrder(here, before, before, bound, 0, time.perf_counter() - start)
    order, tried = _annealed(magnitudes, chosen, seed, wanted, start + seconds)
    after = _kept(magnitudes[:, order], chosen)
    if after <= before:
        order, after = here, before
    return ColumnOrder(order, before, after, bound, tried, time.perf_counter() - start)


def _checked(w: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """Return the magnitudes in float64."""
    if not w.is_floating_point():
        raise DTypeError(f"weights of {w.dtype}; expected floating-point numbers")
    if w.dim() != 2 or not w.numel() or w.shape[1] % pattern.group:
        raise ArgumentError(
            f"a matrix of shape {tuple(w.shape)} does not fit {pattern}; expected (rows, columns) with"
            f" columns in whole groups of {pattern.group}"
        )
    magnitudes = w.detach().cpu().double().abs()
    if not bool(magnitudes.isfinite().all()):
        raise DataError("the weights hold a NaN or an infinity, and no order is better than another for it")
    return magnitudes


def _kept(magnitudes: torch.Tensor, pattern: Pattern) -> float:
    return float(magnitudes[mask(magnitudes, pattern)].sum())


def _annealed(
    magnitudes: torch.Tensor, pattern: Pattern, seed: int, wanted: int, deadline: float
) -> tuple[torch.Tensor, int]:
    random = np.random.Generator(np.random.Philox(seed))
    if len(magnitudes) > _ROWS:
        magnitudes = magnitudes[random.choice(len(magnitudes), _ROWS, replace=False)]
    rows, columns = magnitudes.shape
    unit = LARGEST_SUM // rows / float(magnitudes.max())
    state = swaps((magnitudes.T * unit).to(torch.int32).contiguous().numpy(), pattern.keep, pattern.group)
    search = native.SwapSearch(state)
    search.settle(torch.get_num_threads())
    gains = np.empty(_AT_ONCE, np.int64)
    never = np.full(_AT_ONCE, -(2**62))
    search.anneal(_pairs(random, columns, pattern.group, 1024), never[:1024], gains[:1024])
    scale = float(np.abs(gains[:1024]).mean())
    tried, end, begun = 0, wanted, time.perf_counter()
    while tried < end:
        n = min(_AT_ONCE, end - tried)
        drawn = random.standard_exponential(n) * (scale * _temperature(tried / end))
        search.anneal(_pairs(random, columns, pattern.group, n), drawn.astype(np.int64), gains[:n])
        tried += n
        used = (time.perf_counter() - begun) / (deadline - begun)
        if used > _JUDGED:
            end = min(
                wanted, max(tried, int(tried / used))
            )  # what fits at this speed: annealing ends earlier
    return torch.from_numpy(state.order.astype(np.int64)), tried


def _temperature(done: float) -> float:
    return _HOT * math.pow(_COOL / _HOT, done / _COLD) if done < _COLD else 0.0


def _pairs(random: np.random.Generator, columns: int, group: int, n: int) -> NDArray[np.int32]:
    """Return positions to swap, each pair of two groups."""
    first = random.integers(0, columns, n, np.int32)
    second = random.integers(0, columns - group, n, np.int32)
    second += np.where(second >= first // group * group, np.int32(group), np.int32(0))
    return np.stack([first, second], axis=1)
