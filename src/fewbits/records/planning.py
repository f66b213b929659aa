"""Plans: how each layer of a network is split over devices, and what that is predicted to cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from fewbits.errors import ArgumentError


@dataclass(frozen=True)
class MachineLink:
    """What a device has of a link while all devices send.

    Attributes:
        gigabits: bandwidth of one device, 10^9 bits per second in each direction; may be infinite, or 0.
        latency_us: microseconds from the start of a message to its first byte.
    """

    gigabits: float
    latency_us: float = 0.0

    def __post_init__(self) -> None:
        """Raise unless a link can have these."""
        if not self.gigabits >= 0 or not 0 <= self.latency_us < inf:
            raise ArgumentError(
                f"a link of {self.gigabits!r} Gbit/s and {self.latency_us!r} us; expected 0 or more of both"
            )


@dataclass(frozen=True)
class Machine:
    """What planning knows of devices and of the links between them.

    Attributes:
        name: for people.
        flops: FLOP per second of one device in products, by the width of their operands: ``fp32``, ``tf32``,
            ``bf16``, ``fp8``, ``fp6``, ``fp4``. A width that is missing runs as the next wider one, if there
            is one.
        links: one, or that within a node and that between nodes.
        memory: bytes of one device.
        per_node: devices of a node; all of them are in one if there is one link.
        vector_flops: FLOP per second of all that is not a product, which memory limits most of the time.
    """

    name: str
    flops: Mapping[str, float]
    links: tuple[MachineLink, ...]
    memory: float
    per_node: int = 1
    vector_flops: float = field(default=inf)

    def __post_init__(self) -> None:
        """Raise unless the numbers are those of a machine."""
        known = ("fp32", "tf32", "bf16", "fp8", "fp6", "fp4")
        if not self.flops or any(name not in known or not rate > 0 for name, rate in self.flops.items()):
            raise ArgumentError(
                f"flops={dict(self.flops)} of the machine {self.name!r}; expected numbers above 0 for some of"
                f" {', '.join(known)}"
            )
        if len(self.links) not in (1, 2):
            raise ArgumentError(
                f"{len(self.links)} links of the machine {self.name!r}; expected one, or that within a node"
                " and that between nodes"
            )
        is_whole = type(self.per_node) is int and self.per_node >= 1
        if not is_whole or not self.memory > 0 or not self.vector_flops > 0:
            raise ArgumentError(
                f"per_node={self.per_node}, memory={self.memory} and vector_flops={self.vector_flops} of the"
                f" machine {self.name!r}; expected numbers above 0, a whole one of devices"
            )


@dataclass(frozen=True)
class PlannedLayer:
    """A layer with its split."""

    name: str
    kind: str
    dimensions: tuple[str, ...]
    split: tuple[int, ...]  # for each dimension, over how many devices it is shared out
    format: str  # the recipe of its products; "" where it has none
    compute_seconds: float  # of one device in a step, forward and backward
    link_seconds: float  # of its collectives
    sent_bytes: float  # of its collectives, by one device
    memory_bytes: float  # of one device: parameters, gradients, states, and what is kept for backward
    runner_up: tuple[int, ...]  # the split that is best beside this one, all other layers as they are
    runner_up_seconds: float  # that the step takes longer with it; infinite where there is none
    sensitivity: float = 0.0  # of the layer in its format
    module: str = ""  # the module it comes from, where it comes from one
    sharded: bool = False  # whether each device holds a part of its weights, which it gathers as it computes


@dataclass(frozen=True)
class PlannedEdge:
    """What a tensor between two layers costs whose splits differ."""

    producer: int  # indices of layers
    consumer: int
    operand: int
    link_seconds: float
    sent_bytes: float  # that one device receives, forward and backward
    memory_bytes: float  # of the received part, where it is kept


@dataclass(frozen=True)
class PlannedStrategy:
    """A strategy that somebody else would choose, at the costs of the same model."""

    name: str
    seconds: float
    sent_bytes: float
    memory_bytes: float
    fits: bool = True  # whether it keeps the caps of the plan


@dataclass(frozen=True)
class PlanRecord:
    """A plan for one network, number of devices and machine, as predicted by a model of costs.

    Attributes:
        network: its name, for people.
        model: fingerprint of its graph.
        devices: that share the network out.
        machine: what they are.
        recipe: formats by role, as text; of those that products choose from, all.
        codec: in what weights' gradients travel, as text; "" for that of the recipe.
        layers: in the order of the graph.
        edges: in the order of the graph.
        seconds: of a step, nothing overlapping.
        bound: no plan that was allowed takes less; equal to `seconds` where the plan is proved the best.
        memory_cap: bytes that one device may hold; None for no cap.
        sensitivity_cap: on the sum over layers; None for no cap.
        strategies: others at the same costs.
        warnings: about the graph.
        others: formats by role of layers without products, as text; "" for `recipe`.
    """

    network: str
    model: str
    devices: int
    machine: Machine
    recipe: str
    codec: str
    layers: tuple[PlannedLayer, ...]
    edges: tuple[PlannedEdge, ...]
    seconds: float
    bound: float
    memory_cap: float | None = None
    sensitivity_cap: float | None = None
    strategies: tuple[PlannedStrategy, ...] = ()
    warnings: tuple[str, ...] = ()
    others: str = ""

    @property
    def compute_seconds(self) -> float:
        """Of one device in a step."""
        return sum(layer.compute_seconds for layer in self.layers)

    @property
    def link_seconds(self) -> float:
        """Of all collectives and moved pieces in a step."""
        return sum(x.link_seconds for x in self.layers) + sum(x.link_seconds for x in self.edges)

    @property
    def sent_bytes(self) -> float:
        """By one device in a step."""
        return sum(x.sent_bytes for x in self.layers) + sum(x.sent_bytes for x in self.edges)

    @property
    def memory_bytes(self) -> float:
        """Of one device."""
        return sum(x.memory_bytes for x in self.layers) + sum(x.memory_bytes for x in self.edges)

    @property
    def sensitivity(self) -> float:
        """Of all layers in their formats."""
        return sum(layer.sensitivity for layer in self.layers)

    @property
    def gap(self) -> float:
        """How far above the bound the plan may be, as a share of its time; 0 where it is proved the best."""
        return (self.seconds - self.bound) / self.seconds if self.seconds > self.bound else 0.0
