"""Strategies that others use, as choices of the same options: what a plan is set beside.

Data parallel: all layers split their samples; sharded: with a part of each weight on each device (ZeRO,
Rajbhandari et al., 2020, stage 3). One weird trick (Krizhevsky, One Weird Trick for Parallelizing
Convolutional Neural Networks, 2014): convolutions split samples, products the features of their outputs.
Megatron (Shoeybi et al., Megatron-LM, 2019): within a group of devices, products split outputs and inputs in
turn, attention its heads and embeddings their vocabulary; groups split samples.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

import numpy as np

from fewbits.planner.configurations import batch_dimension, lacking
from fewbits.planner.graph import Graph, Layer
from fewbits.planner.tables import Tables

Wish = list[int]  # a split that a rule asks for; what an option cannot have is cut to what it can


def strategies(tables: Tables, devices: int, per_node: int) -> dict[str, tuple[int, ...]]:
    """Return the options that each rule takes, by its name.

    Where a layer cannot be split as a rule says, by a pin or because an extent does not divide, it takes
    the split nearest to it, smaller in each dimension where there is one. Of several formats a product
    takes that with the least sensitivity, of these the fastest.
    """
    graph = tables.graph
    found = {
        "data parallel": _by(tables, lambda layer: _samples(layer, devices)),
        "one weird trick": _by(tables, lambda layer: _one_weird_trick(layer, devices)),
    }
    if any(own.sharded.any() for own in tables.options):
        found["sharded data parallel"] = _by(tables, lambda layer: _samples(layer, devices), sharded=True)
    group = max((n for n in range(1, per_node + 1) if devices % n == 0), default=1)
    group = group if group > 1 else _root(devices)
    wishes = _megatron(graph, group, devices // group)
    found["megatron"] = tuple(_nearest(tables, i, wish) for i, wish in enumerate(wishes))
    return found


def _by(tables: Tables, rule: Callable[[Layer], Wish], sharded: bool = False) -> tuple[int, ...]:
    return tuple(_nearest(tables, i, rule(layer), sharded) for i, layer in enumerate(tables.graph.layers))


def _nearest(tables: Tables, i: int, wish: Wish, sharded: bool = False) -> int:
    """Return the option that splits most, of those that split no dimension further than is asked for.

    Of equal ones that with weights sharded, or whole, as asked for.
    """
    splits = tables.options[i].splits
    within = (splits <= wish).all(axis=1)
    excess = np.maximum(splits / np.array(wish), np.array(wish) / splits).prod(axis=1) if len(wish) else 0
    formats = tables.layers[i].seconds, tables.sensitivity[i]
    other = tables.options[i].sharded != sharded
    return int(np.lexsort((*formats, other, excess + np.zeros(len(splits)), ~within))[0])


def _samples(layer: Layer, n: int) -> Wish:
    wish, batch = [1] * len(layer.space), batch_dimension(layer)
    if batch is not None:
        wish[batch] = n
    return wish


def _features(layer: Layer) -> int | None:
    """Return the dimension of a product's output features: of its last axis that its input lacks."""
    names = [d.name for d in layer.space]
    lack = set(lacking(layer, layer.inputs[0])) if layer.inputs else set()
    found = [names.index(a) for a in layer.output.axes if a is not None and names.index(a) in lack]
    return found[-1] if found else None


def _inputs(layer: Layer) -> int | None:
    """Return the dimension of a product's input features, over which its output is summed."""
    found = [i for i in lacking(layer, layer.output) if layer.space[i].splittable]
    return found[0] if found else None


def _one_weird_trick(layer: Layer, devices: int) -> Wish:
    features = _features(layer) if layer.kind == "product" and layer.weights else None
    if features is None:
        return _samples(layer, devices if layer.kind != "softmax" else 1)
    wish = [1] * len(layer.space)
    wish[features] = devices
    return wish


def _megatron(graph: Graph, group: int, groups: int) -> list[Wish]:
    """Follow the data: what comes split by features is summed by the next product, and whole after it."""
    producers: dict[int, list[int]] = {}
    for edge in graph.edges:
        producers.setdefault(edge.consumer, []).append(edge.producer)
    is_split: dict[int, bool] = {}
    wishes = []
    for i, layer in enumerate(graph.layers):
        wish = _samples(layer, groups)
        comes_split = any(is_split[p] for p in producers.get(i, []) if p in is_split)
        dimension = None
        if layer.kind in ("product", "embedding") and layer.weights:
            by_inputs = comes_split or layer.kind == "embedding"
            dimension = _inputs(layer) if by_inputs else _features(layer)
            is_split[i] = dimension is not None and not by_inputs
        elif layer.kind in ("attention", "elementwise", "softmax") and comes_split:
            at = 1 if layer.kind == "attention" else len(layer.space) - 1
            dimension = at if 0 <= at < len(layer.space) else None  # a number has none
            is_split[i] = layer.kind != "softmax" and dimension is not None
        if dimension is not None and dimension != batch_dimension(layer):
            wish[dimension] = group
        wishes.append(wish)
    return wishes


def _root(devices: int) -> int:
    """Return the largest divisor whose square is not above the devices."""
    return next(n for n in range(isqrt(devices), 0, -1) if devices % n == 0)
