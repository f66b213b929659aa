"""Where the axes of a tensor come from, followed through operations that only rearrange values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Axes = tuple["int | None", ...]


@dataclass(frozen=True)
class Value:
    """A tensor of the exported graph, and the axes of the layer or of the parameter that it is a view of."""

    shape: tuple[int, ...]
    axes: Axes  # for each axis the one of the source that it is; None where splits cannot follow
    source: int | None = None  # the layer that makes it; None: a parameter, or from outside
    parameter: str = ""  # its qualified name
    batch: tuple[bool, ...] = ()  # which axes are the leading axis of an input of the model

    @property
    def outside(self) -> bool:
        """Whether it depends on inputs and constants only."""
        return self.source is None and not self.parameter

    def seen_as(self, shape: Sequence[int], axes: Axes) -> Value:
        """Return the view of ``shape`` whose axes are ``axes`` of this value."""
        return Value(
            tuple(shape),
            tuple(None if a is None else self.axes[a] for a in axes),
            self.source,
            self.parameter,
            tuple(a is not None and self.batch[a] for a in axes),
        )


def reshaped(old: Sequence[int], new: Sequence[int]) -> Axes:
    """Return for each axis of ``new`` the axis of ``old`` that it is.

    Axes that are split or merged keep the leading one: pieces of as many values in a row are the same pieces
    of both, where their number divides both extents. Other axes, and those of extent 1, are None.
    """
    axes: list[int | None] = [None] * len(new)
    if 0 in (*old, *new):
        return tuple(axes)
    a = b = 0
    while a < len(old) and b < len(new):
        lead, to, left, right = a, b, old[a], new[b]
        while left != right:
            if left < right:
                a += 1
                left *= old[a]
            else:
                b += 1
                right *= new[b]
        lead = next((i for i in range(lead, a + 1) if old[i] > 1), lead)
        to = next((j for j in range(to, b + 1) if new[j] > 1), to)
        if old[lead] > 1:
            axes[to] = lead
        a, b = a + 1, b + 1
    return tuple(axes)


def permuted(rank: int, order: Sequence[int]) -> Axes:
    """Return the axes of a permutation as torch writes it."""
    return tuple(i % rank for i in order)


def swapped(rank: int, first: int, second: int) -> Axes:
    """Return the axes after two are exchanged."""
    order = list(range(rank))
    a, b = first % rank, second % rank
    order[a], order[b] = order[b], order[a]
    return tuple(order)


def expanded(old: Sequence[int], new: Sequence[int]) -> Axes:
    """Return the axes of a broadcast: aligned at the right, None where values repeat."""
    ahead = len(new) - len(old)
    return tuple(
        None if j < ahead or old[j - ahead] != extent or extent == 1 else j - ahead
        for j, extent in enumerate(new)
    )


def kept(old: Sequence[int], new: Sequence[int]) -> Axes:
    """Return the axes of a part or a multiple: None where the extent changed."""
    return tuple(i if old[i] == extent else None for i, extent in enumerate(new))


def without(rank: int, dim: int) -> Axes:
    """Return the axes after one is gone."""
    return tuple(i for i in range(rank) if i != dim % rank)
