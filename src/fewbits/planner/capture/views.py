"""Operations that rearrange values: no layer of the graph, only axes of another one."""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem

import torch
from torch.fx import Node

from fewbits.planner.capture.arguments import argument, extents, operation, tensors
from fewbits.planner.capture.values import Axes, Value, expanded, kept, permuted, reshaped, swapped, without

_View = Callable[[Node, Value, tuple[int, ...]], Axes]


def _reshape(node: Node, value: Value, new: tuple[int, ...]) -> Axes:
    return reshaped(value.shape, new)


def _same(node: Node, value: Value, new: tuple[int, ...]) -> Axes:
    return tuple(range(len(new)))


def _swap(node: Node, value: Value, new: tuple[int, ...]) -> Axes:
    first, second = argument(node, 1, "dim0", -2), argument(node, 2, "dim1", -1)
    return swapped(len(new), int(str(first)), int(str(second)))


def _transpose(node: Node, value: Value, new: tuple[int, ...]) -> Axes:
    return tuple(reversed(range(len(new))))


def _permute(node: Node, value: Value, new: tuple[int, ...]) -> Axes:
    return permuted(len(new), [int(str(i)) for i in _list(argument(node, 1, "dims"))])


def _move(node: Node, value: Value, new: tuple[int, ...]) -> Axes:
    source, to = _list(argument(node, 1, "source")), _list(argument(node, 2, "destination"))
    rank = len(new)
    places = {int(str(b)) % rank: int(str(a)) % rank for a, b in zip(source, to, strict=True)}
    rest = iter([i for i in range(rank) if i not in places.values()])
    return tuple(places[i] if i in places else next(rest) for i in range(rank))


def _list(given: object) -> list[object]:
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _expand(node: Node, value: Value, new: tuple[int, ...]) -> Axes:
    return expanded(value.shape, new)


def _part(node: Node, value: Value, new: tuple[int, ...]) -> Axes:
    return kept(value.shape, new)


def _bits(node: Node, value: Value, new: tuple[int, ...]) -> Axes:
    """Bits that are read in another dtype: the last axis has another extent where that is of another size."""
    return kept(value.shape, new)


def _dropped(node: Node, value: Value, new: tuple[int, ...]) -> Axes:
    return without(len(value.shape), int(str(argument(node, 1, "dim", 0))))


def _repeat(node: Node, value: Value, new: tuple[int, ...]) -> Axes:
    ahead = len(new) - len(value.shape)
    axes = kept(value.shape, new[ahead:])
    return (None,) * ahead + axes


def _interleave(node: Node, value: Value, new: tuple[int, ...]) -> Axes:
    """Neighbours repeat: pieces of the axis are pieces of what comes out, where all repeat as often."""
    if len(new) != len(value.shape):
        return (None,) * len(new)
    axes = _same(node, value, new)
    if _often(node) is not None:
        return axes
    along = int(str(argument(node, 2, "dim", 0) or 0)) % len(new)
    return tuple(None if a == along else a for a in axes)


def _often(node: Node) -> int | None:
    """Return how often neighbours repeat; None where each has a number of its own."""
    repeats = argument(node, 1, "repeats")
    return repeats if isinstance(repeats, int) else None


VIEWS: dict[str, _View] = {
    **dict.fromkeys(
        ("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as"),
        _reshape,
    ),
    "reshape_as": _reshape,
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), _swap),
    "mT": _swap,
    **dict.fromkeys(("t", "numpy_T"), _transpose),
    "permute": _permute,
    **dict.fromkeys(("movedim", "moveaxis"), _move),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), _expand),
    **dict.fromkeys(("slice", "narrow", "split", "split_with_sizes", "chunk", "tensor_split"), _part),
    **dict.fromkeys(("select", "unbind"), _dropped),
    "repeat": _repeat,
    "repeat_interleave": _interleave,
    **dict.fromkeys(
        (
            "contiguous",
            "clone",
            "detach",
            "alias",
            "to",
            "_to_copy",
            "type_as",
            "lift_fresh_copy",
            "positive",
        ),
        _same,
    ),
}


# Views that have memory of their own, whatever they are given.
COPIES = frozenset({"clone", "_to_copy", "lift_fresh_copy", "repeat", "repeat_interleave"})


def _rule(node: Node) -> _View | None:
    """Return how the axes of a view follow from those of what it reads; None of what is no view."""
    return _bits if node.target is torch.ops.aten.view.dtype else VIEWS.get(operation(node))


def is_view(node: Node, operation: str) -> bool:
    """Tell whether an operation makes no layer; dropping nothing out is one too."""
    if operation in {"dropout", "feature_dropout", "alpha_dropout"}:
        return not argument(node, 2, "train") or not argument(node, 1, "p")
    return operation in VIEWS


def base_of(node: Node) -> Node:
    """Return the tensor that a node is a view of; itself, where it is a copy or one of several results."""
    while True:
        made_by = node.all_input_nodes[0] if node.target is getitem else node
        if made_by.op != "call_function" or not is_view(made_by, name := operation(made_by)):
            return node
        if name in COPIES:
            return node
        node = made_by.all_input_nodes[0]


def together(node: Node) -> bool:
    """Tell whether an operation broadcasts tensors to each other that have one shape already."""
    shapes = {tuple(x.meta["val"].shape) for x in tensors(node)}
    return operation(node) == "broadcast_tensors" and len(shapes) == 1


def resized(node: Node, piece: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor | None:
    """Return what a view makes of a piece where its arguments are sizes of the whole; None: they are not.

    Args:
        node: the operation.
        piece: of what it reads.
        shape: of the piece that it makes.
    """
    view = _rule(node)
    if view is _reshape:
        return piece.reshape(shape)
    if view is _expand:
        return piece.expand(shape)
    if view is _interleave and (often := _often(node)) is not None:
        along = argument(node, 2, "dim")
        dim = along if isinstance(along, int) else None
        return torch.repeat_interleave(piece, often, dim)  # without the size of the whole
    return piece if view is _part and piece.shape == shape else None


def seen(node: Node, value: Value) -> Value | tuple[Value, ...]:
    """Return what a view makes of a value: one, or as many as the operation returns."""
    view = _rule(node) or _same
    shapes = extents(node)
    made = tuple(_checked(value, view(node, value, shape), shape) for shape in shapes)
    return made if isinstance(node.meta["val"], (list, tuple)) else made[0]


def _checked(value: Value, axes: Axes, shape: tuple[int, ...]) -> Value:
    if len(axes) != len(shape):
        raise AssertionError(f"axes {axes} for the shape {shape}")
    return value.seen_as(shape, axes)
