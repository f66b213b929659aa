"""All costs of a network's options as tables, and the choice that costs least in a weighted sum of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fewbits.planner.dominance import Indices, undominated
from fewbits.planner.edge_cost import EdgeCosts, edge_costs
from fewbits.planner.graph import Edge, Graph, Layer
from fewbits.planner.layer_cost import GradientCosts, LayerCosts, Reals, gradient_costs, layer_costs
from fewbits.planner.options import Options
from fewbits.planner.role_bits import RoleBits
from fewbits.planner.solver import Minimum, minimize
from fewbits.records import Machine

QUANTITIES = ("seconds", "memory", "sensitivity")


@dataclass(frozen=True)
class Tables:
    """Costs of all options. Layers that are alike share their arrays."""

    graph: Graph
    options: Sequence[Options]
    layers: Sequence[LayerCosts]
    sensitivity: Sequence[Reals]
    edges: Sequence[EdgeCosts]

    def of_layer(self, i: int, weights: Mapping[str, float]) -> Reals:
        """Return the weighted costs of a layer, one for each option."""
        return sum(
            (weights[q] * self._alone(i, q) for q in QUANTITIES if weights.get(q)),
            np.zeros(len(self.sensitivity[i])),
        )

    def _alone(self, i: int, quantity: str) -> Reals:
        found: Reals = self.sensitivity[i] if quantity == "sensitivity" else getattr(self.layers[i], quantity)
        return found

    def of_edge(self, e: int, weights: Mapping[str, float]) -> Reals:
        """Return the weighted costs of an edge, by distinct pieces."""
        edge = self.edges[e]
        parts = {"seconds": edge.seconds, "memory": edge.memory}
        return sum((weights[q] * parts[q] for q in parts if weights.get(q)), np.zeros(edge.seconds.shape))

    def total(self, quantity: str, choice: Sequence[int]) -> float:
        """Return the sum of a quantity over layers and edges."""
        found = sum(float(self._alone(i, quantity)[k]) for i, k in enumerate(choice))
        if quantity == "sensitivity":
            return found
        for e, edge in enumerate(self.graph.edges):
            costs = self.edges[e]
            at = costs.rows[choice[edge.producer]], costs.columns[choice[edge.consumer]]
            found += float((costs.seconds if quantity == "seconds" else costs.memory)[at])
        return found

    @cached_property
    def around(self) -> list[list[int]]:
        """For each layer its edges."""
        found: list[list[int]] = [[] for _ in self.layers]
        for e, edge in enumerate(self.graph.edges):
            found[edge.producer].append(e)
            found[edge.consumer].append(e)
        return found

    def beside(self, i: int, choice: Sequence[int], quantity: str, without: int = -1) -> Reals:
        """Return what each option of one layer costs with its edges, all other layers as chosen.

        Edges to the layer `without` are left out.
        """
        found = self.of_layer(i, {quantity: 1.0})
        for e in self.around[i] if quantity != "sensitivity" else []:
            edge, costs = self.graph.edges[e], self.edges[e]
            if without not in (edge.producer, edge.consumer):
                table = costs.seconds if quantity == "seconds" else costs.memory
                if edge.producer == i:
                    found = found + table[costs.rows, costs.columns[choice[edge.consumer]]]
                else:
                    found = found + table[costs.rows[choice[edge.producer]], costs.columns]
        return found

    def between(self, i: int, j: int, quantity: str) -> Reals:
        """Return what the edges between two layers cost, by the options of both."""
        found = np.zeros((len(self.options[i].formats), len(self.options[j].formats)))
        for e in self.around[i] if quantity != "sensitivity" else []:
            edge, costs = self.graph.edges[e], self.edges[e]
            if {edge.producer, edge.consumer} == {i, j}:
                table = costs.seconds if quantity == "seconds" else costs.memory
                full = table[np.ix_(costs.rows, costs.columns)]
                found += full if edge.producer == i else full.T
        return found

    def least(self, weights: Mapping[str, float], memory_bytes: int) -> Minimum:
        """Return the options that cost least in the sum of weight times quantity."""
        shared: dict[object, Reals] = {}
        costs = []
        for i, own in enumerate(self.layers):
            alike = (id(own), id(self.sensitivity[i]) if weights.get("sensitivity") else 0)
            if alike not in shared:
                shared[alike] = self.of_layer(i, weights)
            costs.append(shared[alike])
        compact = {id(edge): self.of_edge(e, weights) for e, edge in enumerate(self.edges)}
        left = self._undominated(costs, compact)
        tables: dict[tuple[int, int], Reals] = {}
        for edge, between in zip(self.graph.edges, self.edges, strict=True):
            pair = (edge.producer, edge.consumer)
            rows, columns = between.rows[left[pair[0]]], between.columns[left[pair[1]]]
            table = compact[id(between)][np.ix_(rows, columns)]
            tables[pair] = tables[pair] + table if pair in tables else table
        found = minimize([c[k] for c, k in zip(costs, left, strict=True)], tables, memory_bytes=memory_bytes)
        choice = tuple(int(k[a]) for k, a in zip(left, found.choice, strict=True))
        return replace(found, choice=choice)

    def _undominated(self, costs: Sequence[Reals], compact: Mapping[int, Reals]) -> list[Indices]:
        """Return the options of each layer that are worth a look; alike layers share the answer."""
        beside: list[list[tuple[int, bool, EdgeCosts]]] = [[] for _ in costs]
        for edge, own in zip(self.graph.edges, self.edges, strict=True):
            beside[edge.producer].append((id(own), True, own))
            beside[edge.consumer].append((id(own), False, own))
        known: dict[object, Indices] = {}
        left = []
        for c, around in zip(costs, beside, strict=True):
            key = (id(c), tuple(sorted((at, producer) for at, producer, _ in around)))
            if key not in known:
                tables = [
                    compact[at][own.rows] if producer else compact[at].T[own.columns]
                    for at, producer, own in around
                ]
                known[key] = undominated(c, tables)
            left.append(known[key])
        return left


def tables(
    graph: Graph,
    options: Sequence[Options],
    devices: int,
    machine: Machine,
    roles: Sequence[RoleBits],
    sensitivity: Mapping[str, Sequence[float]],
) -> Tables:
    """Return the costs of all options.

    Args:
        graph: the network.
        options: of each layer.
        devices: how many there are.
        machine: what they are.
        roles: bits by role in each format of products, and last those of layers without products.
        sensitivity: of layers by name, a number for each format; 0 for all others.
    """
    fed = {(edge.consumer, edge.operand) for edge in graph.edges}
    keepers = {
        edge.producer for edge in graph.edges if _keeps(graph.layers[edge.consumer], edge.operand, roles)
    }
    keepers |= {i for i, layer in enumerate(graph.layers) if layer.keeps_output}
    known: dict[object, LayerCosts] = {}
    layers = []
    for i, (layer, own) in enumerate(zip(graph.layers, options, strict=True)):
        has_producer = tuple((i, k) in fed for k in range(len(layer.inputs)))
        key = (replace(layer, name="", module=""), has_producer, i in keepers, id(own))
        if key not in known:
            known[key] = _layer(layer, own, has_producer, i in keepers, roles, machine)
        layers.append(known[key])
    edges, known_edges = [], dict[object, EdgeCosts]()
    for edge in graph.edges:
        p, c = edge.producer, edge.consumer
        pair = (id(layers[p]), id(layers[c]), edge.operand, edge.axes)
        if pair not in known_edges:
            known_edges[pair] = _edge(edge, graph, options, roles, devices, machine)
        edges.append(known_edges[pair])
    none = [0.0] * len(roles)
    numbers = [np.array(sensitivity.get(layer.name, none)) for layer in graph.layers]
    return Tables(
        graph, options, layers, [s[o.formats] for s, o in zip(numbers, options, strict=True)], edges
    )


def _keeps(consumer: Layer, operand: int, roles: Sequence[RoleBits]) -> bool:
    """Return whether a consumer keeps an input as it is, rather than a narrow copy or nothing."""
    as_it_is = not consumer.product or any(r.kept is None for r in roles[:-1])
    return consumer.inputs[operand].kept and as_it_is


def _layer(
    layer: Layer,
    own: Options,
    fed: Sequence[bool],
    kept: bool,
    roles: Sequence[RoleBits],
    machine: Machine,
) -> LayerCosts:
    found = [
        layer_costs(
            layer,
            own.splits[own.formats == f],
            fed,
            kept,
            roles[f],
            machine,
            own.sharded[own.formats == f],
        )
        for f in np.unique(own.formats)
    ]
    return LayerCosts(
        *(np.concatenate([getattr(f, name) for f in found]) for name in ("compute", "link", "sent", "memory"))
    )


def _edge(
    edge: Edge,
    graph: Graph,
    options: Sequence[Options],
    roles: Sequence[RoleBits],
    devices: int,
    machine: Machine,
) -> EdgeCosts:
    producer, consumer = graph.layers[edge.producer], graph.layers[edge.consumer]
    made, used = options[edge.producer], options[edge.consumer]
    backward = [min(r.gradient, r.vector) if producer.product else r.vector for r in roles]
    forward = [min(r.activation, r.vector) if consumer.product else r.vector for r in roles]
    operand = consumer.inputs[edge.operand]
    summing = [
        gradient_costs(consumer, operand, used.splits[used.formats == f], roles[f], machine)
        for f in np.unique(used.formats)
    ]
    gradient = GradientCosts(
        *(np.concatenate([getattr(g, name) for g in summing]) for name in ("parts", "link", "sent"))
    )
    kept = [0.0 if consumer.product and r.kept is not None else r.vector for r in roles]
    return edge_costs(
        edge,
        (producer, made.splits, np.array(backward)[made.formats]),
        (consumer, used.splits, np.array(forward)[used.formats], np.array(kept)[used.formats]),
        gradient,
        devices,
        machine,
    )
