"""PaSE's own model of costs (Elango 2021, sections II and IV), in which its tables can be checked.

A layer costs FLOP, a multiply-add counting as one, and r FLOP for each word that is sent. A product of
m x k by k x n values is computed three times; its output is all-reduced over the parts of k, its input's
gradient over those of n, its weight's over those of m. A convolution is the product of
b h w x c r s by c r s x n, and is not split along h and w; all other layers are. Splits are divisors that
leave at least four of an extent, and one for recurrent layers and attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from fewbits.planner.configurations import Splits, axis_splits, divisor_splits
from fewbits.planner.graph import Edge, Graph, Layer
from fewbits.planner.layer_cost import Reals
from fewbits.planner.solver import Minimum, minimize

WORD = 8  # bytes
PAPER_FLOPS, PAPER_BANDWIDTH = 10e12, 16e9  # FLOP/s of a device, bytes/s of its links
_GROUP = {(True, True, True): "batch", (True, False, True): "m", (False, True, True): "n"}
LEAST = 4  # of an extent, that a split leaves


@dataclass(frozen=True)
class PaperProblem:
    """A network's splits and tables in the paper's model."""

    splits: tuple[Splits, ...]
    costs: tuple[Reals, ...]  # FLOP
    edges: dict[tuple[int, int], Reals]

    def cost(self, choice: Sequence[Sequence[int]]) -> float:
        """Return what a strategy costs, given by the split of each layer."""
        at = [int(np.flatnonzero((s == c).all(axis=1))[0]) for s, c in zip(self.splits, choice, strict=True)]
        alone = sum(float(c[k]) for c, k in zip(self.costs, at, strict=True))
        return alone + sum(float(t[at[i], at[j]]) for (i, j), t in self.edges.items())

    def solve(self) -> tuple[Minimum, list[tuple[int, ...]]]:
        """Return the minimum, and the split of each layer there."""
        found = minimize(self.costs, self.edges)
        return found, [tuple(map(int, s[k])) for s, k in zip(self.splits, found.choice, strict=True)]


def paper_problem(
    graph: Graph, devices: int, flops: float = PAPER_FLOPS, bandwidth: float = PAPER_BANDWIDTH
) -> PaperProblem:
    """Return the paper's tables for a network.

    Args:
        graph: the network.
        devices: p.
        flops: FLOP per second of a device.
        bandwidth: bytes per second of a link; a word has eight bytes.
    """
    r = flops / (bandwidth / WORD)
    known: dict[Layer, tuple[Splits, Reals]] = {}
    own = []
    for layer in graph.layers:
        nameless = replace(layer, name="", module="")
        if nameless not in known:
            least = 1 if layer.kind in ("lstm", "attention") else LEAST
            splits = divisor_splits(layer, devices, least)
            if layer.kind == "convolution":
                at = [i for i, d in enumerate(layer.space) if d.name in ("h", "w")]
                splits = splits[(splits[:, at] == 1).all(axis=1)]
            known[nameless] = splits, _layer_cost(layer, splits, r)
        own.append(known[nameless])
    edges: dict[tuple[int, int], Reals] = {}
    alike: dict[object, Reals] = {}
    for edge in graph.edges:
        pair = edge.producer, edge.consumer
        key = id(own[pair[0]][0]), id(own[pair[1]][0]), edge.operand, edge.axes
        if key not in alike:
            alike[key] = _edge_cost(graph, edge, own[pair[0]][0], own[pair[1]][0], r)
        edges[pair] = edges[pair] + alike[key] if pair in edges else alike[key]
    return PaperProblem(tuple(s for s, _ in own), tuple(c for _, c in own), edges)


def _layer_cost(layer: Layer, splits: Splits, r: float) -> Reals:
    if layer.product:
        return _product_cost(layer, splits, r)
    local = np.array([d.extent for d in layer.space]) / splits
    elements: Reals = local.prod(axis=1)
    if layer.kind == "normalization":
        return 16 * elements + r * _statistics(layer, splits, 4)
    if layer.kind == "softmax":
        samples = elements / local[:, -1]
        return 4 * elements + 2 * samples + r * np.where(splits[:, -1] > 1, 2 * samples, 0)
    if layer.kind == "pooling":
        return elements + r * _ghosts(layer, splits)
    return elements * (layer.flops > 0)


def _product_cost(layer: Layer, splits: Splits, r: float) -> Reals:
    """Return the cost of a product of which each dimension belongs to m, n, k, or all three operands."""
    first = layer.inputs[0]
    second = layer.weights[0] if layer.weights else layer.inputs[1]
    at = {d.name: i for i, d in enumerate(layer.space)}
    groups: dict[str, list[int]] = {"batch": [], "m": [], "n": [], "k": []}
    for name, i in at.items():
        has = name in first.axes, name in second.axes, name in layer.output.axes
        groups[_GROUP.get(has, "k")].append(i)
    parts = {group: splits[:, over].prod(axis=1) for group, over in groups.items()}
    extents = {group: prod(layer.space[i].extent for i in over) for group, over in groups.items()}
    extents["k"] = max(round(prod(second.shape) / (extents["n"] * extents["batch"])), 1)
    batch, m, n, k = (extents[group] / parts[group] for group in ("batch", "m", "n", "k"))
    multiplied = 2 * extents["batch"] * extents["m"] * extents["n"] * extents["k"]
    pointwise = max(layer.flops - multiplied, 0) / (extents["batch"] * extents["m"] * extents["n"])
    sent = _all_reduce(m * n, parts["k"]) + _all_reduce(m * k, parts["n"]) + _all_reduce(n * k, parts["m"])
    return np.asarray(batch * (3 * m * n * k + 3 * pointwise * m * n + r * sent))


def _all_reduce(words: Reals, parts: Reals) -> Reals:
    return 2 * (parts - 1) / parts * words


def _statistics(layer: Layer, splits: Splits, times: int) -> Reals:
    """Return the words of all-reduced moments, and of gradients of scale and shift."""
    sent = np.zeros(len(splits))
    at = {d.name: i for i, d in enumerate(layer.space)}
    for operand in (*layer.statistics, layer.weights[0]):
        over = [i for name, i in at.items() if name not in operand.axes]
        words = prod(n for n, a in zip(operand.shape, operand.axes, strict=True) if a is not None)
        local = words / axis_splits(layer, operand, splits).prod(axis=1)
        sent += times * _all_reduce(local, splits[:, over].prod(axis=1))
    return sent


def _ghosts(layer: Layer, splits: Splits) -> Reals:
    """Return the words of neighbours' pieces that windows reach into."""
    operand = layer.inputs[0]
    parts = axis_splits(layer, operand, splits)
    local = np.array(operand.shape) / parts
    window = round((layer.flops / prod(layer.output.shape)) ** 0.5)
    reach = np.array([0, 0, window, window]) * (parts > 1)
    return np.asarray((local + reach).prod(axis=1) - local.prod(axis=1))


def _edge_cost(graph: Graph, edge: Edge, made: Splits, used: Splits, r: float) -> Reals:
    """Return the words that the consumer needs and the producer's piece lacks, twice."""
    producer, consumer = graph.layers[edge.producer], graph.layers[edge.consumer]
    operand = consumer.inputs[edge.operand]
    have = axis_splits(producer, producer.output, made)
    need = axis_splits(consumer, operand, used)
    axes = edge.axes or tuple(range(len(operand.shape)))
    size = prod(operand.shape)
    overlap = np.full((len(have), len(need)), float(size))
    for c, p in enumerate(axes):
        overlap /= need[:, c] if p is None else np.maximum(have[:, p, None], need[:, c])
    for p in set(range(have.shape[1])) - set(axes):
        overlap /= have[:, p, None]
    needed = size / need.prod(axis=1)
    # Of more pieces than the producer has, some device has nothing yet.
    overlap = np.where(need.prod(axis=1) > have.prod(axis=1)[:, None], 0, overlap)
    return np.asarray(2 * r * np.maximum(needed - overlap, 0))
