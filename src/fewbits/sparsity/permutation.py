"""An order of a matrix's columns under which an N:M pattern keeps more of its magnitude.

Channel Permutations for N:M Sparsity (Pool and Yu, NeurIPS 2021) poses the problem and searches greedily over
swaps or over stripes. Here swaps are annealed: each costs two passes over one column, so that a small matrix
has millions of them in a second.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np
import torch
from numpy.typing import NDArray

from fewbits.errors import ArgumentError, DataError
from fewbits.formats import Pattern
from fewbits.formats import pattern as read
from fewbits.kernels import threads
from fewbits.kernels.arrays.nm import permutation_search
from fewbits.kernels.bits.nm_permutation import LARGEST_SUM, identity_permutation
from fewbits.sparsity.masks import check_weights, mask
from fewbits.tensor.inputs import is_count

# Of a random swap's mean change: where annealing starts and ends. 0.2 and 0.02 do as well for some matrices.
_HOT, _COOL = 0.3, 0.03
_COLD = 0.9  # of all swaps; after them only those that gain are made
_MOVES_PER_COLUMN = 65536
_AT_ONCE = 16384  # swaps between two looks at the clock
_ROWS = 16384  # the search samples this many of more rows: enough to tell which columns fit together
_ROWS_AT_ONCE = 4096  # evaluated together, where all rows are
_JUDGED = 0.1  # share of the time after which the measured speed is reliable


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
    w: torch.Tensor | Sequence[torch.Tensor],
    pattern: str | Pattern = "2:4",
    *,
    seed: int = 0,
    moves: int | None = None,
    seconds: float = 10.0,
) -> ColumnOrder:
    """Search an order of the columns of ``w`` under which the pattern keeps more magnitude in its rows.

    Equal arguments give equal orders on every machine with the same NumPy, as long as ``seconds`` is enough
    for all moves; where it is not, fewer are made and annealing is faster.

    Args:
        w: floating point, (rows, columns), or several such matrices, whose columns get one order. Of more
            than 16384 rows a random choice is searched, and all of them judge what is found.
        pattern: ``N:M``, such as ``2:4``; groups of M lie along the rows.
        seed: of the random swaps.
        moves: swaps to try; default: 65536 for each column.
        seconds: at most this long.

    Raises:
        FormatError: no such pattern.
        ArgumentError: w has other axes, its columns are not a multiple of M, it is not on the CPU, where the
            search runs, a budget is not positive, or a seed no whole number from 0 up.
        DTypeError: w is no tensor of floating-point numbers.
        DataError: w holds a NaN or an infinity.

    >>> result = find_order(torch.tensor([[4.0, 3.0, 2.0, 0.0, 0.0, 0.0, 0.0, 1.0]]))
    >>> result.before, result.after, result.bound
    (8.0, 10.0, 10.0)
    """
    start = time.perf_counter()
    chosen = read(pattern)
    matrices = [w] if isinstance(w, torch.Tensor) else list(w)
    columns = _checked(matrices, chosen)
    _check_budget(seed, moves, seconds)
    wanted = _MOVES_PER_COLUMN * columns if moves is None else int(moves)
    identity = torch.arange(columns)
    before, bound = (
        _kept_magnitude(matrices, chosen, identity),
        _bound(matrices, columns * chosen.keep // chosen.group),
    )
    if columns == chosen.group or bound <= before:
        return ColumnOrder(identity, before, before, bound, 0, time.perf_counter() - start)
    random = np.random.Generator(np.random.Philox(seed))
    order, tried = _annealed(_sampled(matrices, random), chosen, random, wanted, start, seconds)
    after = _kept_magnitude(matrices, chosen, order)
    if after <= before:
        order, after = identity, before
    return ColumnOrder(order, before, after, bound, tried, time.perf_counter() - start)


def _check_budget(seed: object, moves: object, seconds: object) -> None:
    if not ((moves is None or is_count(moves)) and isinstance(seconds, Real) and float(seconds) > 0):
        raise ArgumentError(
            f"moves={moves!r:.80} and seconds={seconds!r:.80}; expected a budget above zero, of moves a whole"
            " number"
        )
    if not is_count(seed, 0):
        raise ArgumentError(f"seed={seed!r:.80}; expected a whole number from 0 up")


def _checked(matrices: list[torch.Tensor], pattern: Pattern) -> int:
    """Check the matrices against the pattern and each other, and return their number of columns."""
    for w in matrices:
        check_weights(w)
        if not w.is_cpu:
            raise ArgumentError(
                f"weights on {w.device}; the search for an order of columns runs only on the CPU: move them,"
                " or the model, there with .cpu()"
            )
    shapes = [tuple(w.shape) for w in matrices]
    columns = shapes[0][-1] if shapes and len(shapes[0]) == 2 else 0
    if (
        not columns
        or columns % pattern.group
        or any(len(s) != 2 or s[0] == 0 or s[1] != columns for s in shapes)
    ):
        raise ArgumentError(
            f"{', '.join(map(str, shapes)) or 'no matrix'} does not fit {pattern}; expected (rows, columns)"
            f" with the same columns, in whole groups of {pattern.group}"
        )
    if not all(bool(magnitudes.isfinite().all()) for magnitudes in _parts(matrices)):
        raise DataError("the weights hold a NaN or an infinity, and no order is better than another for it")
    return columns


def _parts(matrices: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield magnitudes in float64, some rows at a time: all of them may be more than fits into memory."""
    for w in matrices:
        for first in range(0, len(w), _ROWS_AT_ONCE):
            yield w.detach()[first : first + _ROWS_AT_ONCE].double().abs()


def _kept_magnitude(matrices: list[torch.Tensor], pattern: Pattern, order: torch.Tensor) -> float:
    total = 0.0
    for magnitudes in _parts(matrices):
        ordered = magnitudes[:, order]
        total += float(ordered[mask(ordered, pattern)].sum())
    return total


def _bound(matrices: list[torch.Tensor], keep: int) -> float:
    return sum(float(magnitudes.topk(keep, dim=1).values.sum()) for magnitudes in _parts(matrices))


def _sampled(matrices: list[torch.Tensor], random: np.random.Generator) -> torch.Tensor:
    """Return the magnitudes of all rows, or of a random sample of ``_ROWS`` of them."""
    rows = sum(len(w) for w in matrices)
    if rows <= _ROWS:
        return torch.cat(list(_parts(matrices)))
    chosen = torch.from_numpy(np.sort(random.choice(rows, _ROWS, replace=False)))
    samples, start = [], 0
    for w in matrices:
        rows_of_w = chosen[(chosen >= start) & (chosen < start + len(w))] - start
        samples.append(w.detach()[rows_of_w].double().abs())
        start += len(w)
    return torch.cat(samples)


def _annealed(
    magnitudes: torch.Tensor,
    pattern: Pattern,
    random: np.random.Generator,
    wanted: int,
    start: float,
    seconds: float,
) -> tuple[torch.Tensor, int]:
    rows, columns = magnitudes.shape
    integers = (magnitudes.T / magnitudes.max() * (LARGEST_SUM // rows)).to(torch.int32)
    state = identity_permutation(integers.contiguous().numpy(), pattern.keep, pattern.group)
    search = permutation_search(state)
    search.evaluate_groups(threads())
    gains = np.empty(_AT_ONCE, np.int64)
    never = np.full(_AT_ONCE, -(2**62))
    search.anneal(_pairs(random, columns, pattern.group, 1024), never[:1024], gains[:1024])
    scale = float(np.abs(gains[:1024]).mean())
    tried, end = 0, wanted
    while tried < end:
        n = min(_AT_ONCE, end - tried)
        drawn = random.standard_exponential(n) * (scale * _temperature(tried / end))
        search.anneal(_pairs(random, columns, pattern.group, n), drawn.astype(np.int64), gains[:n])
        tried += n
        used = (time.perf_counter() - start) / seconds
        if used > _JUDGED:
            # Shorten the annealing to the number of swaps that fits into the time at this speed.
            end = min(wanted, max(tried, int(tried / used)))
    return torch.from_numpy(state.order.astype(np.int64)), tried


def _temperature(done: float) -> float:
    return _HOT * math.pow(_COOL / _HOT, done / _COLD) if done < _COLD else 0.0


def _pairs(random: np.random.Generator, columns: int, group: int, n: int) -> NDArray[np.int32]:
    """Return pairs of positions to swap; the two of a pair lie in different groups."""
    first = random.integers(0, columns, n, np.int32)
    second = random.integers(0, columns - group, n, np.int32)
    second += np.where(second >= first // group * group, np.int32(group), np.int32(0))
    return np.stack([first, second], axis=1)
