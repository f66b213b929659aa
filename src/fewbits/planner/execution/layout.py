"""Splits laid on the axes of a device mesh: which axis shares out which dimension of each layer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral

from fewbits.errors import ArgumentError
from fewbits.planner.graph import Edge, Graph, Layer

# For each axis of the mesh the dimension of a layer that it shares out, or None.
Assignment = tuple["str | None", ...]
# For each axis of the mesh the axis of a tensor that it shares out, or None.
Places = tuple["int | None", ...]


@dataclass(frozen=True)
class Layout:
    """The assignment of each layer of a graph, by its name."""

    mesh: tuple[int, ...]
    assignments: Mapping[str, Assignment]


def lay_out(graph: Graph, splits: Mapping[str, Mapping[str, int]], mesh: Sequence[int]) -> Layout:
    """Choose which mesh axes share out which dimensions.

    Layers are taken in their order. Each gets, of the assignments that make its split, the one that moves the
    fewest values from the layers before it; of equals the first in the order of the mesh and of the space.

    Args:
        graph: the layers.
        splits: for each layer that is split, parts by dimension.
        mesh: extents of the mesh.

    Raises:
        ArgumentError: a split that the layer does not have or the mesh cannot make.
    """
    chosen: dict[str, Assignment] = {}
    before: dict[int, list[Edge]] = {}
    for edge in graph.edges:
        before.setdefault(edge.consumer, []).append(edge)
    for index, layer in enumerate(graph.layers):
        possible = _assignments(layer, splits.get(layer.name, {}), tuple(mesh))
        chosen[layer.name] = min(
            possible, key=lambda one: _moved(graph, layer, before.get(index, []), chosen, one, mesh)
        )
    return Layout(tuple(mesh), chosen)


def _assignments(layer: Layer, split: Mapping[str, int], mesh: tuple[int, ...]) -> list[Assignment]:
    space = {d.name: d for d in layer.space}
    given: object = split  # as a caller without types may pass
    if not isinstance(given, Mapping) or not all(
        isinstance(n, Integral) and int(n) > 0 for n in given.values()
    ):
        raise ArgumentError(
            f"{layer.name} is split {given!r:.80}; expected whole numbers from 1 up by dimension, as in"
            " {'b': 2}"
        )
    for name, parts in split.items():
        if parts > 1 and name not in space:
            raise ArgumentError(
                f"the plan splits {name!r} of {layer.name}, whose dimensions are"
                f" {', '.join(space) or 'none'}; make the plan for this model"
            )
        if parts > 1 and space[name].extent % parts:
            raise ArgumentError(
                f"{layer.name}: {space[name].extent} along {name} cannot be shared out evenly to {parts};"
                " take a divisor"
            )
    names = [d.name for d in layer.space if split.get(d.name, 1) > 1]
    wanted = {name: split[name] for name in names}
    found = [
        one
        for one in itertools.product([*names, None], repeat=len(mesh))
        if all(math.prod(q for q, d in zip(mesh, one, strict=True) if d == n) == wanted[n] for n in names)
    ]
    if not found:
        given = ", ".join(f"{n} by {parts}" for n, parts in wanted.items())
        raise ArgumentError(
            f"{layer.name} is split {given}, which a mesh of {' x '.join(map(str, mesh))} cannot make: each"
            " number of parts has to be a product of extents of the mesh, each used once"
        )
    return found


def places(assignment: Assignment, dims: Sequence[str | None]) -> Places:
    """Return where the pieces of a tensor lie whose axes run along ``dims``."""
    return tuple(None if d is None or d not in dims else list(dims).index(d) for d in assignment)


def through(held: Places, axes: Sequence[int | None]) -> Places:
    """Return where pieces lie in a view whose axes are ``axes`` of what is held."""
    return tuple(None if p is None or p not in axes else list(axes).index(p) for p in held)


def produced(graph: Graph, edge: Edge, chosen: Mapping[str, Assignment]) -> Places:
    """Return where the pieces of an edge's tensor lie, as the consumer numbers its axes."""
    producer = graph.layers[edge.producer]
    held = places(chosen[producer.name], producer.output.axes)
    return through(held, edge.axes) if edge.axes else held


def summed(layer: Layer, dims: Sequence[str | None], assignment: Assignment) -> tuple[bool, ...]:
    """Tell over which axes of the mesh the gradients of a tensor are summed that a layer reads.

    Pieces that share a tensor each have a summand of its gradient, unless the tensor is used behind a sum
    over them: a bias has all of its gradient wherever the summands of a product were added up.
    """
    sums = {d.name for d in layer.space} - set(layer.output.axes)
    behind = sums if not sums.intersection(dims) else set()
    return tuple(d is not None and d not in dims and d not in behind for d in assignment)


def _moved(
    graph: Graph,
    layer: Layer,
    edges: list[Edge],
    chosen: Mapping[str, Assignment],
    one: Assignment,
    mesh: Sequence[int],
) -> tuple[float, int]:
    """Return how many values one process receives for an assignment, both ways, and how many pieces turn.

    Of equal traffic that without turns is taken: a piece that is to be shared out along another axis travels
    as an all-to-all, which gloo has to make of an all-gather.
    """
    total, turns = 0.0, 0
    for edge in edges:
        operand = layer.inputs[edge.operand]
        needed, held = places(one, operand.axes), produced(graph, edge, chosen)
        size = float(math.prod(operand.shape))
        needed_size = held_size = both = size
        for q, a, b in zip(mesh, needed, held, strict=True):
            needed_size /= 1 if a is None else q
            held_size /= 1 if b is None else q
            turned = a is not None and b is not None and a != b
            turns += turned
            both /= q * q if turned else 1 if a is b is None else q
        total += needed_size + held_size - 2 * both
    return total, turns
