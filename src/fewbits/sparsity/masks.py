"""Which weights to keep under a pattern: by magnitude along one axis, or along two at once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import chain, combinations, product

import torch

from fewbits.errors import ArgumentError, DTypeError
from fewbits.formats import Pattern
from fewbits.formats import pattern as read
from fewbits.kernels.bits.axes import checked_axis

SEARCHES = ("greedy", "optimal")
_LARGEST_OPTIMAL = 4  # side of a tile: 4:8 has 1.2e11 patterns
_TILES_AT_ONCE = 1 << 18
_PIECE = 1 << 22  # values
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def mask(w: torch.Tensor, pattern: str | Pattern, *, axis: int = -1) -> torch.Tensor:
    """Mark the values of largest magnitude in each group of neighbours.

    It equals :func:`fewbits.kernels.reference.sparse_stream.by_magnitude`: of equal magnitudes the one that
    comes first is kept; NaN counts as infinite. For a linear layer the
    reduction axis is -1, for a convolution's ``(out, in, ...)`` it is 1 (Accelerating Sparse Deep Neural
    Networks, Mishra and others 2021, sections 3 and 4).

    Args:
        w: floating point of any shape, ``(..., n, ...)``.
        pattern: ``N:M``, such as ``2:4``.
        axis: along which groups of M lie.

    Returns:
        bool of w's shape; exactly N of each group are True.

    Raises:
        FormatError: no such pattern.
        ArgumentError: w has no such axis, or its size is not a multiple of M.
        DTypeError: w is no tensor of floating-point numbers.

    >>> mask(torch.tensor([1.0, -3.0, 2.0, 2.0]), "2:4")
    tensor([False,  True,  True, False])
    """
    chosen = read(pattern)
    groups = _magnitudes(_grouped(w, chosen, axis))
    members = groups.unbind(-1)
    beaten = torch.zeros(groups.shape, dtype=torch.uint8, device=w.device)  # by how many of its group
    for i, j in combinations(range(chosen.group), 2):
        first_wins = members[i] >= members[j]
        beaten[..., j] += first_wins
        beaten[..., i] += ~first_wins
    return (beaten < chosen.keep).flatten(-2).movedim(-1, axis).contiguous()


def transposable_mask(w: torch.Tensor, pattern: str | Pattern, *, search: str = "optimal") -> torch.Tensor:
    """Mark values so that both w and its transpose follow the pattern, tile by tile of M x M.

    Both products of training, with the weight and with its transpose, are then sparse (Hubara and others,
    Accelerated Sparse Neural Training, 2021).

    Args:
        w: floating point, ``(out, in, ...)``; tiles lie over the first two axes.
        pattern: ``N:M``, such as ``2:4``.
        search: ``greedy`` takes values by magnitude as long as their row and column have room, and may leave
            some with fewer than N; ``optimal`` compares all tiles there are (90 for 2:4), for M up to 4.

    Returns:
        bool of w's shape; at most N of each group along either axis are True, with ``optimal`` exactly N.

    Raises:
        FormatError: no such pattern.
        ArgumentError: fewer than two axes, a size that is not a multiple of M, no such search, or
            ``optimal`` with M above 4.
        DTypeError: w is no tensor of floating-point numbers.
    """
    chosen = read(pattern)
    if search not in SEARCHES:
        raise ArgumentError(f"search={search!r} is not one of {', '.join(SEARCHES)}")
    if search == "optimal" and chosen.group > _LARGEST_OPTIMAL:
        raise ArgumentError(
            f"search='optimal' tries every tile of {chosen.group} x {chosen.group}, and there are too many"
            f" for {chosen}; use search='greedy', or a pattern of at most {_LARGEST_OPTIMAL} neighbours"
        )
    check_weights(w)
    if w.dim() < 2:
        raise ArgumentError(f"a tensor of shape {tuple(w.shape)} has no transpose; expected (out, in, ...)")
    for axis in (0, 1):
        _grouped(w, chosen, axis)
    m = chosen.group
    rows = torch.unflatten(torch.unflatten(w.movedim((0, 1), (-2, -1)), -1, (-1, m)), -3, (-1, m))
    tiles = _magnitudes(rows.transpose(-3, -2))  # (..., out / m, in / m, m, m)
    choose = _best if search == "optimal" else _greedy
    flat = tiles.reshape(-1, m * m)
    starts = range(0, max(len(flat), 1), _TILES_AT_ONCE)
    kept = torch.cat([choose(flat[i : i + _TILES_AT_ONCE], chosen) for i in starts]).reshape(tiles.shape)
    return kept.transpose(-3, -2).flatten(-2).flatten(-3, -2).movedim((-2, -1), (0, 1)).contiguous()


def partial_mask(w: torch.Tensor, final: torch.Tensor, share: float) -> torch.Tensor:
    """Return a mask that drops only the smallest of the values that ``final`` drops.

    Args:
        w: the weights.
        final: bool of w's shape.
        share: of the values that ``final`` drops, from 0 to 1.

    Returns:
        bool of w's shape: True wherever ``final`` is.
    """
    dropped = (~final).flatten().nonzero()[:, 0]
    smallest = w.detach().flatten()[dropped].abs().argsort(stable=True)[: round(share * len(dropped))]
    kept = torch.ones_like(final).flatten()
    kept[dropped[smallest]] = False
    return kept.view_as(final)


def keep_(x: torch.Tensor, mask: torch.Tensor) -> None:
    """Set to zero, in place, what a mask drops: NaN and infinity too.

    Bits are cleared. ``masked_fill_`` branches at every value, and takes thirty times as long.
    """
    bits = x.detach().view(_INTEGERS[x.element_size()])
    bits.bitwise_and_(mask.to(bits.dtype).neg_())


def is_sparse(w: torch.Tensor, pattern: str | Pattern, *, axis: int = -1) -> bool:
    """Return whether every group of neighbours has at most N values that are not zero.

    Raises:
        FormatError, ArgumentError, DTypeError: as :func:`mask`.
    """
    chosen = read(pattern)
    return bool(((_grouped(w, chosen, axis) != 0).sum(-1) <= chosen.keep).all())


def density(w: torch.Tensor) -> float:
    """Return the share of values that are not zero; of an empty tensor, 1."""
    return int((w != 0).sum()) / w.numel() if w.numel() else 1.0


def kept_magnitude(w: torch.Tensor, mask: torch.Tensor) -> float:
    """Return the share of the sum of magnitudes that a mask keeps; of a sum of zero, 1.

    Args:
        w: the weights before they are pruned.
        mask: bool of w's shape.

    Raises:
        ArgumentError: a mask of another shape.
    """
    if mask.shape != w.shape:
        raise ArgumentError(
            f"a mask of shape {tuple(mask.shape)} for weights of shape {tuple(w.shape)}; expected their own"
        )
    total = kept = 0.0
    # In pieces: in float64 a large tensor would take several times its memory.
    for part, chosen in zip(_pieces(w.detach()), _pieces(mask), strict=True):
        magnitudes = part.double().abs()
        total += float(magnitudes.sum())
        kept += float((magnitudes * chosen).sum())
    return kept / total if total else 1.0


def check_weights(w: object) -> None:
    """Raise unless ``w`` is a tensor of floating-point numbers.

    Raises:
        DTypeError: it is something else.
    """
    if not isinstance(w, torch.Tensor):
        raise DTypeError(f"weights of type {type(w).__name__}; expected a torch.Tensor")
    if not w.is_floating_point():
        raise DTypeError(f"weights of {w.dtype}; expected floating-point numbers")


def _grouped(w: torch.Tensor, pattern: Pattern, axis: int) -> torch.Tensor:
    """Return w with ``axis`` last and cut into groups, ``(..., n / m, m)``."""
    check_weights(w)
    front = checked_axis(axis, w.dim())
    if not w.dim() or w.shape[front] % pattern.group:
        raise ArgumentError(
            f"axis {axis} of shape {tuple(w.shape)} does not fit {pattern}; expected a size that is a"
            f" multiple of {pattern.group}: take another axis or pattern, or leave this tensor dense"
        )
    return torch.unflatten(w.detach().movedim(front, -1), -1, (-1, pattern.group))


def _pieces(x: torch.Tensor) -> Iterator[torch.Tensor]:
    flat = x.flatten()
    return (flat[i : i + _PIECE] for i in range(0, len(flat), _PIECE))


def _magnitudes(w: torch.Tensor) -> torch.Tensor:
    w = w.float() if w.element_size() == 1 else w  # torch has no magnitudes of float8
    return w.abs().nan_to_num(nan=torch.inf, posinf=torch.inf)


def _best(tiles: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """Return the mask of largest magnitude for each of ``(n, m * m)``; of equal ones, the first in order."""
    every = torch.tensor(_tiles(pattern), device=tiles.device)
    places, infinite = every.double().mT, tiles.isinf()
    some = tiles.device.type != "cpu" or bool(infinite.any())  # on a device nobody waits for the answer
    # In float64 the sum of a few float32 is all but exact. An infinity times an unset zero would be NaN.
    finite = (tiles.masked_fill(infinite, 0.0) if some else tiles).double()
    if tiles.dtype == torch.float64:  # whose sums may be infinite
        large = finite.amax(-1, keepdim=True) > 2.0**1000
        finite = torch.where(large, finite * 2.0**-10, finite)
    sums = finite @ places
    if some:
        infinities = infinite.double() @ places
        sums.masked_fill_(infinities < infinities.amax(-1, keepdim=True), -1.0)
    return every[sums.argmax(-1)]


@cache
def _tiles(pattern: Pattern) -> list[list[bool]]:
    """Return all tiles, flattened, with N in each row and each column."""
    m = pattern.group
    rows = [[i in chosen for i in range(m)] for chosen in combinations(range(m), pattern.keep)]
    tiles = product(rows, repeat=m)
    fitting = (t for t in tiles if all(sum(column) == pattern.keep for column in zip(*t, strict=True)))
    return [list(chain.from_iterable(t)) for t in fitting]


def _greedy(tiles: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """Return a mask for each of ``(n, m * m)``: values by magnitude, while their row and column have room."""
    m, n = pattern.group, len(tiles)
    kept = torch.zeros(n, m * m, dtype=torch.bool, device=tiles.device)
    room = torch.full((2, n, m), pattern.keep, device=tiles.device)  # of rows, of columns
    for place in tiles.argsort(dim=-1, descending=True, stable=True).unbind(-1):
        row, column = (place // m)[:, None], (place % m)[:, None]
        fits = (room[0].gather(-1, row) > 0) & (room[1].gather(-1, column) > 0)
        kept.scatter_(-1, place[:, None], fits)
        room[0].scatter_add_(-1, row, -fits.long())
        room[1].scatter_add_(-1, column, -fits.long())
    return kept
