"""What a tensor between two layers costs for each pair of their splits.

Each device receives what its piece needs and does not hold, forward for the consumer and backward, of the
gradient, for the producer (Elango 2021, section II). Pieces lie on devices so that they overlap most; axes
along which splits cannot follow overlap as independent ones do. A gradient that the consumer's devices have
parts of is summed on the way: by an all-reduce where the producer holds it whole, and where it holds pieces
by a reduce-scatter, half of that, over as many devices as there are pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from fewbits.planner.configurations import Splits, axis_splits
from fewbits.planner.graph import Edge, Layer
from fewbits.planner.layer_cost import GradientCosts, Reals, message_seconds
from fewbits.records import Machine

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class EdgeCosts:
    """Costs of an edge, by the distinct pieces of the producer and of the consumer."""

    rows: Indices  # for each option of the producer its row of the tables
    columns: Indices  # for each option of the consumer its column
    seconds: Reals
    sent: Reals  # bytes
    memory: Reals  # bytes


def edge_costs(
    edge: Edge,
    producer: tuple[Layer, Splits, Reals],
    consumer: tuple[Layer, Splits, Reals, Reals],
    gradient: GradientCosts,
    devices: int,
    machine: Machine,
) -> EdgeCosts:
    """Return what an edge costs.

    Args:
        edge: between the two.
        producer: the layer, the split of each option, and the bits of a gradient that it receives.
        consumer: the layer, the split of each option, and the bits of a value that it receives and of one
            that it keeps.
        gradient: of that input, for each option of the consumer.
        devices: how many there are.
        machine: what they are.
    """
    operand = consumer[0].inputs[edge.operand]
    size = prod(operand.shape)
    made, rows = _distinct(axis_splits(producer[0], producer[0].output, producer[1]), producer[2])
    splits = axis_splits(consumer[0], operand, consumer[1])
    summing = gradient.parts, gradient.link, gradient.sent
    used, columns = _distinct(splits, consumer[2], consumer[3], *summing)
    backward_bits, made = made[:, -1:], made[:, :-1]
    used, (forward_bits, kept_bits, parts, sum_seconds, sum_bytes) = used[:, :-5], used[:, -5:].T
    axes = edge.axes or tuple(range(len(operand.shape)))
    followed = [(p, c) for c, p in enumerate(axes) if p is not None]
    overlap = np.ones((len(made), len(used)))
    alike = np.ones_like(overlap)
    for p, c in followed:
        overlap /= np.maximum(made[:, p, None], used[:, c])
        alike *= np.where(made[:, p, None] == used[:, c], used[:, c], 1)
    free_made = [i for i in range(made.shape[1]) if i not in {p for p, _ in followed}]
    free_used = [i for i in range(used.shape[1]) if i not in {c for _, c in followed}]
    overlap /= made[:, free_made].prod(axis=1)[:, None] * used[:, free_used].prod(axis=1)
    forward = size * (1 / used.prod(axis=1) - overlap)
    backward = size * (1 / made.prod(axis=1)[:, None] - overlap)
    forward[forward < 1e-9 * size] = 0  # rounding of thirds
    backward[backward < 1e-9 * size] = 0
    near, far = machine.links[0], machine.links[-1]
    # Pieces that both split alike are the slowest digits of a device's number: what differs lies within them.
    is_near = devices / alike <= machine.per_node
    seconds = np.zeros_like(overlap)
    for octets in (forward * forward_bits / 8, backward * backward_bits / 8):
        seconds += np.where(is_near, message_seconds(octets, near), message_seconds(octets, far))
    finer = np.rint(1 / (used.prod(axis=1) * overlap)).astype(np.int64)  # producer's pieces in a consumer's
    scattered = np.gcd(finer, parts.astype(np.int64))
    # Of 2 (q - 1) / q that an all-reduce sends, a scatter over g devices leaves (g - 1) / g out.
    spared = (1 - 1 / scattered) / np.maximum(2 * (1 - 1 / parts), 1e-9)
    seconds += np.where(np.isfinite(sum_seconds), sum_seconds * (1 - spared), np.inf)
    return EdgeCosts(
        rows,
        columns,
        seconds,
        (forward * forward_bits + backward * backward_bits) / 8 + sum_bytes * (1 - spared),
        forward * kept_bits / 8 * operand.kept,
    )


def _distinct(splits: Splits, *bits: Reals) -> tuple[Reals, Indices]:
    """Return distinct rows of splits and bits, and for each option which row is its own."""
    rows, inverse = np.unique(np.column_stack([splits, *bits]), axis=0, return_inverse=True)
    return rows, inverse.ravel()
