"""A network as the planner sees it: layers with their iteration spaces, and the tensors that go between them.

The terms are those of PaSE (Elango 2021, section II): the iteration space of a layer is the set of all
index tuples of its loops, a product ``y[i, k] += x[i, j] w[j, k]`` having the dimensions i, j and k. Over a
dimension that an operand does not have it is shared forward, and its gradient is summed backward; over one
that the output does not have, the output is summed forward. Every collective follows from this.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Dimension:
    """One loop of a layer."""

    name: str  # unique within the layer: b, m, n, k, c, h, w, r, s, ...
    extent: int
    splittable: bool = True  # whether devices may share it out; values that depend on each other may not


@dataclass(frozen=True)
class Operand:
    """A tensor that a layer reads or writes: each axis runs along one dimension of the layer's space."""

    name: str  # "input", "weight", "bias", "output", or what the graph it comes from calls it
    shape: tuple[int, ...]  # of the whole tensor, in values
    axes: tuple[str | None, ...]  # the dimension each axis runs along; None for one that is never split
    halos: tuple[int, ...] = ()  # values of the neighbour's piece that each axis needs; empty: none
    trained: bool = True  # whether a weight has a gradient and a state in the optimizer
    kept: bool = True  # whether the backward pass needs an input as it was read


@dataclass(frozen=True)
class Collective:
    """Values within a layer that its devices sum or gather, over the dimensions that they do not have."""

    operand: Operand
    times: float  # all-reduces of it in a step; a gather or a scatter is half of one
    each: tuple[str, ...] = ()  # dimensions along which there is a message for each index, after the other


@dataclass(frozen=True)
class Layer:
    """One operation, or several that are always split alike."""

    name: str  # unique in the graph: the qualified name of the module, or of the operation
    kind: (
        str  # product, convolution, attention, embedding, lstm, normalization, softmax, elementwise, unknown
    )
    space: tuple[Dimension, ...]
    flops: float  # of the forward pass over the whole space; a multiply-add is two
    inputs: tuple[Operand, ...]  # from other layers, or from outside
    weights: tuple[Operand, ...]  # parameters
    output: Operand
    product: bool = False  # whether its FLOP run at the rate of products, in a format of the recipe
    saved: int = 0  # values kept for the backward pass beside inputs and output, over the whole space
    module: str = ""  # qualified name of the module it comes from, where it comes from one
    statistics: tuple[Operand, ...] = ()  # summed over what they lack, forward and backward: moments, sums
    collectives: tuple[Collective, ...] = ()  # of its inside, beside those that follow from its operands
    keeps_output: bool = False  # whether its own backward pass needs the output
    # Why its weights cannot be sharded; empty: they can. Plans tell networks apart by what is in the repr.
    unsharded: str = field(default="", repr=False)


@dataclass(frozen=True)
class Edge:
    """A tensor that one layer makes and another reads.

    ``axes`` has for each axis of the consumer's operand the axis of the producer's output that it is, None
    where splits cannot follow (a reshape, a flattening); empty, they are the same.
    """

    producer: int  # index in the layers
    consumer: int
    operand: int  # which input of the consumer
    axes: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class Graph:
    """Layers in an order in which data flows, and the edges between them."""

    layers: tuple[Layer, ...]
    edges: tuple[Edge, ...]
    warnings: tuple[str, ...] = ()  # operations planned as "batch split or replicated", by name, and why
    unrunnable: str = ""  # why no plan can be run, however layers are split; empty: plans can
