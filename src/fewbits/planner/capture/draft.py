"""What is known of one operation before it is a layer of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch.fx import Node

Names = tuple["str | None", ...]

# Of the axes of a tensor, by their number: what most networks mean by them.
_AXES = {
    1: ("b",),
    2: ("b", "d"),
    3: ("b", "s", "d"),
    4: ("b", "c", "h", "w"),
    5: ("b", "c", "t", "h", "w"),
}
_LEADING = ("b", "s", "t", "u", "v")


def axis_names(rank: int) -> tuple[str, ...]:
    """Return a name for each axis."""
    return _AXES.get(rank) or tuple(f"a{i}" for i in range(rank))


def leading_names(rank: int) -> tuple[str, ...]:
    """Return names for the axes before those that an operation names itself."""
    return _LEADING[:rank] if rank <= len(_LEADING) else tuple(f"a{i}" for i in range(rank))


@dataclass(frozen=True)
class Use:
    """A tensor that an operation reads, in the order of its arguments."""

    node: Node
    dims: Names  # for each axis a dimension of the space, or None
    halos: tuple[int, ...] = ()
    kept: bool = True  # whether the backward pass needs it


@dataclass
class Draft:
    """A layer to be: extents by dimension, what is read, and which dimensions each result runs along."""

    kind: str
    uses: list[Use]
    outputs: list[Names]
    extents: dict[str, int]
    whole: set[str] = field(default_factory=set)  # dimensions that cannot be shared out
    flops: float = 0.0
    product: bool = False
    saved: int = 0  # values kept beside what is read and the first result
    keeps_output: bool = False
    warning: str = ""
    statistics: tuple[tuple[tuple[int, ...], Names], ...] = ()  # shapes, dimensions

    def fits(self, made: Sequence[Sequence[int]]) -> bool:
        """Tell whether each axis has a multiple of the extent of the dimension it runs along.

        Windows and dimensions that are never split may have other extents where they are read.

        Args:
            made: shapes of the results.
        """
        read = [
            (tuple(int(n) for n in use.node.meta["val"].shape), use.dims)
            for use in self.uses
            if not use.halos
        ]
        for (shape, dims), free in [
            *((one, self.whole) for one in read),
            *((one, set()) for one in zip(made, self.outputs, strict=False)),
        ]:
            if len(shape) != len(dims):
                return False
            for n, d in zip(shape, dims, strict=True):
                if d is not None and d not in free and n % max(1, self.extents.get(d, 0)):
                    return False
        return len(made) == len(self.outputs)

    def run_along(self, shape: Sequence[int], dims: Names) -> None:
        """Enter the extents of a tensor's axes."""
        for extent, dim in zip(shape, dims, strict=True):
            if dim is not None:
                self.extents.setdefault(dim, extent)
