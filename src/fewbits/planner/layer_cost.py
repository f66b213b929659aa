"""What a layer costs in each of its splits: compute, collectives and memory of one device in a step.

Gradients of inputs are part of edges: what they cost depends on what the producer holds of them.

A product is computed three times, once forward and twice backward (Elango 2021, section IV), once backward
if none of its weights is trained; what is no product, twice. Values that are summed over q pieces are
all-reduced: 2 (q - 1) / q of them are sent. Within nodes that is done first, and each device of a node then
reduces its part with those of other nodes. Weights that are sharded are gathered twice in place of that, and
their gradients scattered; what a layer gathers it holds while it computes, which counts as no memory. Of a
codec with a density each piece sends what it keeps to all others, q - 1 times, as fewbits.distributed does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from fewbits.planner.configurations import Splits, axis_splits, lacking
from fewbits.planner.graph import Collective, Layer, Operand
from fewbits.planner.machines import product_rate
from fewbits.planner.role_bits import RoleBits, run_bytes
from fewbits.planner.sharding import padded
from fewbits.recipes import Codec
from fewbits.records import Machine, MachineLink

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class LayerCosts:
    """Costs of a layer, one for each split, of one device."""

    compute: Reals  # seconds
    link: Reals  # seconds
    sent: Reals  # bytes
    memory: Reals  # bytes

    @cached_property
    def seconds(self) -> Reals:
        """Compute and collectives, one after the other."""
        return self.compute + self.link


def layer_costs(
    layer: Layer,
    splits: Splits,
    fed: Sequence[bool],
    kept: bool,
    roles: RoleBits,
    machine: Machine,
    sharded: NDArray[np.bool_] | None = None,
) -> LayerCosts:
    """Return what a layer costs in each split.

    Args:
        layer: the layer.
        splits: (k, d).
        fed: for each input whether another layer makes it, which then needs its gradient.
        kept: whether it or a layer after it keeps the output for the backward pass.
        roles: bits by role.
        machine: the devices.
        sharded: (k,), for each split whether all devices share out the weights; None: in none.
    """
    parted = np.zeros(len(splits), bool) if sharded is None else sharded
    pieces = splits.prod(axis=1)
    reduce = _Collectives(layer, splits, machine)
    reduce.add(layer.output, roles.vector, lacking(layer, layer.output))
    for operand, has_gradient in zip(layer.inputs, fed, strict=True):
        reduce.exchange(operand, 2 * roles.vector if has_gradient else roles.vector)
    for alike in _alike(layer):  # gradients that are summed by the same devices travel together
        if roles.gathered is None:
            reduce.add(alike, np.where(parted, 0.0, roles.weight_gradient), summed(layer, alike))
        else:
            reduce.gather(alike, roles.gathered, summed(layer, alike), ~parted)
    if parted.any():  # weights are gathered twice, and what is scattered is half of a sum
        devices = int(pieces[parted][0])
        weights = Operand("weights", (sum(padded(w, devices) for w in layer.weights),), (None,))
        bits = np.where(parted, (2 * roles.frozen + roles.weight_gradient) / 3, 0.0)
        reduce.add(weights, bits, range(len(layer.space)), times=1.5)
    for operand in layer.statistics:
        reduce.add(operand, roles.vector, lacking(layer, operand), times=2)
    for inside in layer.collectives:
        reduce.inside(inside, roles.vector)
    return LayerCosts(
        _compute(layer, roles, machine) / pieces,
        reduce.seconds,
        reduce.sent,
        _memory(layer, splits, fed, kept, roles, parted),
    )


@dataclass(frozen=True)
class GradientCosts:
    """What it takes to sum the gradient of an input, one for each split."""

    parts: Reals  # devices that have a part of each sum
    link: Reals  # seconds of an all-reduce
    sent: Reals  # bytes of it


def gradient_costs(
    layer: Layer, operand: Operand, splits: Splits, roles: RoleBits, machine: Machine
) -> GradientCosts:
    """Return what it takes to sum the gradient of an input; arguments as :func:`layer_costs`."""
    over = summed(layer, operand)
    reduce = _Collectives(layer, splits, machine)
    reduce.add(operand, roles.vector, over)
    return GradientCosts(splits[:, over].prod(axis=1).astype(np.float64), reduce.seconds, reduce.sent)


def summed(layer: Layer, operand: Operand) -> list[int]:
    """Return the dimensions over which the gradient of an operand is summed: those that it lacks.

    What has none of the dimensions that the output lacks, as a bias, is used after the sum over these: its
    gradient is whole in each of their parts.
    """
    before = {layer.space[i].name for i in lacking(layer, layer.output)}
    is_after = not before & set(operand.axes)
    return [i for i in lacking(layer, operand) if not (is_after and layer.space[i].name in before)]


def values(layer: Layer, operand: Operand, splits: Splits) -> Reals:
    """Return the values of an operand that one device has in each split."""
    return np.asarray(prod(operand.shape) / axis_splits(layer, operand, splits).prod(axis=1))


def _alike(layer: Layer) -> list[Operand]:
    """Return the weights that are trained, those along the same dimensions as one."""
    together: dict[frozenset[str | None], Operand] = {}
    for operand in layer.weights:
        if not operand.trained:
            continue
        key = frozenset(operand.axes) | {None}
        first = together.get(key)
        if first is None:
            together[key] = operand
            continue
        sizes = [prod(o.shape) // prod(_extents(o)) for o in (first, operand)]
        together[key] = Operand("weights", (sum(sizes), *_extents(first)), (None, *_named(first)))
    return list(together.values())


def _named(operand: Operand) -> tuple[str, ...]:
    return tuple(axis for axis in operand.axes if axis is not None)


def _extents(operand: Operand) -> tuple[int, ...]:
    return tuple(n for n, axis in zip(operand.shape, operand.axes, strict=True) if axis is not None)


def _compute(layer: Layer, roles: RoleBits, machine: Machine) -> float:
    if not layer.product:
        return 2 * layer.flops / machine.vector_flops
    forward, of_weight, of_input = (layer.flops / product_rate(machine, bits) for bits in roles.products)
    is_frozen = bool(layer.weights) and not any(weight.trained for weight in layer.weights)
    return forward + of_input + (0.0 if is_frozen else of_weight)


def _memory(
    layer: Layer,
    splits: Splits,
    fed: Sequence[bool],
    kept: bool,
    roles: RoleBits,
    sharded: NDArray[np.bool_],
) -> Reals:
    pieces = splits.prod(axis=1)
    bits: Reals = layer.saved * roles.vector / pieces
    for operand in layer.weights:
        own = values(layer, operand, splits)
        if sharded.any():
            devices = int(pieces[sharded][0])
            own = np.where(sharded, padded(operand, devices) / devices, own)
        bits = bits + (roles.parameter if operand.trained else roles.frozen) * own
    if kept:
        bits = bits + roles.vector * values(layer, layer.output, splits)
    narrow = roles.kept if layer.product else None
    for operand, has_producer in zip(layer.inputs, fed, strict=True):
        if operand.kept and (narrow is not None or not has_producer):
            bits = bits + (narrow or roles.vector) * values(layer, operand, splits)
    return bits / 8


class _Collectives:
    """Sums of seconds and bytes of the collectives of a layer, for each split."""

    def __init__(self, layer: Layer, splits: Splits, machine: Machine) -> None:
        self.layer, self.splits, self.machine = layer, splits, machine
        self.seconds, self.sent = np.zeros(len(splits)), np.zeros(len(splits))
        self._inner = within_nodes(splits, machine)

    def inside(self, collective: Collective, bits: float) -> None:
        """Sum or gather what a layer exchanges within itself, one message after the other."""
        turns = np.ones(len(self.splits))
        for i, d in enumerate(self.layer.space):
            if d.name in collective.each:
                turns = turns * (d.extent / self.splits[:, i])
        operand = collective.operand
        self.add(operand, bits, lacking(self.layer, operand), collective.times, turns)

    def add(
        self,
        operand: Operand,
        bits: Reals | float,
        over: Sequence[int],
        times: float = 1.0,
        turns: Reals | float = 1.0,
    ) -> None:
        """All-reduce an operand over dimensions, so many times, each in so many messages."""
        octets = values(self.layer, operand, self.splits) * bits / 8
        inner = self._inner[:, over].prod(axis=1)
        outer = self.splits[:, over].prod(axis=1) / inner
        near, far = self.machine.links[0], self.machine.links[-1]
        for group, sent, link in ((inner, octets, near), (outer, octets / inner, far)):
            moved = 2 * times * (group - 1) / group * sent
            self.sent += moved
            self.seconds += message_seconds(moved, link, 2 * times * turns * np.ceil(np.log2(group)))

    def gather(self, operand: Operand, codec: Codec, over: Sequence[int], where: NDArray[np.bool_]) -> None:
        """Send what a codec keeps of an operand to all others along dimensions, in the splits `where`."""
        others = self.splits[:, over].prod(axis=1) - 1
        counts = np.ceil(values(self.layer, operand, self.splits)).astype(int).tolist()
        octets = {n: run_bytes(codec, n) for n in set(counts)}
        moved = np.where(where, others * np.array([octets[n] for n in counts]), 0)
        self.sent += moved
        self.seconds += self._on_link(moved, over, others)

    def _on_link(self, moved: Reals, over: Sequence[int], steps: Reals | float = 1.0) -> Reals:
        """Return the time of bytes along dimensions: within a node, if their parts all lie there."""
        is_near = (self._inner[:, over] == self.splits[:, over]).all(axis=1)
        near, far = self.machine.links[0], self.machine.links[-1]
        return np.where(is_near, message_seconds(moved, near, steps), message_seconds(moved, far, steps))

    def exchange(self, operand: Operand, bits: float) -> None:
        """Fetch what an operand's pieces need of their neighbours (halos)."""
        if not any(operand.halos):
            return
        parts = axis_splits(self.layer, operand, self.splits)
        extents = np.array(operand.shape) / parts
        moved = ((extents + np.where(parts > 1, operand.halos, 0)).prod(axis=1) - extents.prod(axis=1)) * bits
        at = [d.name for d in self.layer.space]
        over = [at.index(a) for a, halo in zip(operand.axes, operand.halos, strict=True) if halo and a]
        self.sent += moved / 8
        self.seconds += self._on_link(moved / 8, over)


def within_nodes(splits: Splits, machine: Machine) -> Splits:
    """Return which part of each dimension's split lies within a node: that of the last dimensions first.

    A split that fits into what is left of a node is within it, whether it divides that or not; of a larger
    one, what divides it.
    """
    if len(machine.links) == 1:
        return splits
    inner = np.ones_like(splits)
    left = np.full(len(splits), machine.per_node)
    for i in range(splits.shape[1] - 1, -1, -1):
        fits = splits[:, i] <= left
        inner[:, i] = np.where(fits, splits[:, i], np.gcd(splits[:, i], left))
        left = np.where(fits, left // splits[:, i], 1)
    return inner


def message_seconds(octets: Reals, link: MachineLink, steps: Reals | float = 1.0) -> Reals:
    """Return the time of so many bytes in so many messages; nothing takes no time on any link."""
    octets = np.where(octets > 0, octets, 0.0)
    if link.gigabits == 0:
        return np.where(octets > 0, np.inf, 0.0)
    return np.where(octets > 0, 8e-9 * octets / link.gigabits + 1e-6 * link.latency_us * steps, 0.0)
