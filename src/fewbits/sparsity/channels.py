"""Which axes of a model's tensors have to be permuted together, from its graph."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import fx

Axis = tuple[str, int]  # the name of a tensor of the graph, and the index of one of its axes


@dataclass
class Axes:
    """The axes of all tensors in classes: those of one class are permuted together or not at all.

    A class is fixed where a permutation would be seen: at an input, an output, or by an operation for which
    neighbours matter.
    """

    parent: dict[Axis, Axis] = field(default_factory=dict)
    fixed: dict[Axis, str] = field(default_factory=dict)  # by the root of a class: why
    # Channels and their positions, flattened to one axis: (channels, flattened, positions).
    flattened: list[tuple[Axis, Axis, int]] = field(default_factory=list)
    names: dict[fx.Node, str] = field(default_factory=dict)  # of parameters: tied ones share a name
    consumed: dict[Axis, None] = field(default_factory=dict)  # the reduction axis of each layer's weight

    def of(self, node: fx.Node, axis: int) -> Axis:
        """Return an axis of a node's tensor, counted from the front or the back."""
        return self.names.get(node, f"%{node.name}"), axis % max(len(shape(node)), 1)

    def root(self, axis: Axis) -> Axis:
        """Return the axis that represents the class of ``axis`` (union-find, with path halving)."""
        while (up := self.parent.get(axis, axis)) != axis:
            self.parent[axis] = self.parent.get(up, up)
            axis = up
        return axis

    def join(self, a: fx.Node, axis_a: int, b: fx.Node, axis_b: int) -> None:
        """Put two axes into one class; of two sizes they cannot be in one order, and both are fixed."""
        if shape(a)[axis_a] != shape(b)[axis_b]:
            for node, axis in ((a, axis_a), (b, axis_b)):
                self.fix(node, axis, "it meets an axis of another size")
            return
        self.join_axes(self.of(a, axis_a), self.of(b, axis_b))

    def join_axes(self, a: Axis, b: Axis) -> None:
        """Merge the classes of two axes."""
        root_a, root_b = self.root(a), self.root(b)
        self.parent.setdefault(root_a, root_a)
        if root_a == root_b:
            return
        self.parent[root_b] = root_a
        reason = self.fixed.pop(root_b, None)
        if reason is not None:
            self.fixed.setdefault(root_a, reason)

    def fix(self, node: fx.Node, axis: int, why: str) -> None:
        """Forbid the permutation of an axis; ``why`` is the reason that reports give."""
        if shape(node)[axis] > 1:
            self.fix_axis(self.of(node, axis), why)

    def fix_axis(self, axis: Axis, why: str) -> None:
        """Forbid the permutation of the class of ``axis``."""
        self.parent.setdefault(axis, axis)
        self.fixed.setdefault(self.root(axis), why)

    def fix_all(self, node: fx.Node, why: str) -> None:
        """Forbid the permutation of every axis of a node's tensor."""
        for axis in range(len(shape(node))):
            self.fix(node, axis, why)

    def flatten(self, node: fx.Node, axis: int, out: fx.Node, out_axis: int, positions: int) -> None:
        """Record that ``out_axis`` is ``axis`` with each channel expanded to ``positions`` values."""
        pair = self.of(node, axis), self.of(out, out_axis)
        for member in pair:
            self.parent.setdefault(member, member)
        self.flattened.append((*pair, positions))

    def settle(self) -> None:
        """Propagate joins and fixed axes between flattened axes and their channels until nothing changes."""
        known = (0, 0)
        while known != (known := (len(self.fixed), len({self.root(a) for a in self.parent}))):
            sources: dict[Axis, tuple[Axis, int]] = {}
            for channels, flat, positions in self.flattened:
                root, below = self.root(flat), self.root(channels)
                first, size = sources.setdefault(root, (below, positions))
                if size != positions or root == below:
                    self.fix_axis(root, "flattened in two ways")
                self.join_axes(first, below)
            flat_roots = {self.root(flat) for _, flat, _ in self.flattened}
            for channels, flat, _ in self.flattened:
                root, below = self.root(flat), self.root(channels)
                if below in flat_roots:
                    self.fix_axis(below, "flattened twice")
                for a, b in ((root, below), (below, root)):
                    if a in self.fixed:
                        self.fix_axis(b, self.fixed[a])

    def members(self) -> dict[Axis, list[Axis]]:
        """Return the axes of each class by its root."""
        classes: dict[Axis, list[Axis]] = defaultdict(list)
        for axis in self.parent:
            classes[self.root(axis)].append(axis)
        return classes


def shape(node: fx.Node) -> tuple[int, ...]:
    """Return the shape of a node's tensor; ``()`` if its value is not a tensor."""
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def matched(before: tuple[int, ...], after: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Return which axes of a view correspond to which axes of its source, as the shortest runs of equal size.

    Axes of size one are left out.
    """
    left = [i for i, n in enumerate(before) if n != 1]
    right = [i for i, n in enumerate(after) if n != 1]
    runs: list[tuple[list[int], list[int]]] = []
    while left and right:
        a, b = [left.pop(0)], [right.pop(0)]
        while (n := prod(before[i] for i in a)) != (m := prod(after[i] for i in b)):
            (a if n < m else b).append((left if n < m else right).pop(0))
        runs.append((a, b))
    return runs


def argument(node: fx.Node, name: str) -> Any:
    """Return the value that a node passes for an argument, or the argument's default."""
    for i, declared in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]  # an operator
        if declared.name == name:
            return node.args[i] if i < len(node.args) else node.kwargs.get(name, declared.default_value)
    return None
