"""What a tensor between two layers costs for each pair of their splits.

Each device receives what its piece needs and does not hold, forward for the consumer and backward, of the
gradient, for the producer (Elango 2021, section II). Pieces lie on devices so that they overlap most; axes
along which splits cannot follow overlap as independent ones do.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from fewbits.planner.configurations import Splits, axis_splits
from fewbits.planner.graph import Edge, Layer
from fewbits.planner.layer_cost import COPIED, Reals, message_seconds
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
    devices: int,
    machine: Machine,
) -> EdgeCosts:
    """Return what an edge costs.

    Args:
        edge: between the two.
        producer: the layer, the split of each option, and the bits of a gradient that it receives.
        consumer: the layer, the split of each option, and the bits of a value that it receives and of one
            that it keeps.
        devices: how many there are.
        machine: what they are.
    """
    operand = consumer[0].inputs[edge.operand]
    size = prod(operand.shape)
    made, rows = _distinct(axis_splits(producer[0], producer[0].output, producer[1]), producer[2])
    used, columns = _distinct(axis_splits(consumer[0], operand, consumer[1]), consumer[2], consumer[3])
    backward_bits, made = made[:, -1:], made[:, :-1]
    forward_bits, kept_bits, used = used[:, -2], used[:, -1], used[:, :-2]
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
    keeps = consumer[0].kind not in COPIED
    return EdgeCosts(
        rows,
        columns,
        seconds,
        (forward * forward_bits + backward * backward_bits) / 8,
        forward * kept_bits / 8 * keeps,
    )


def _distinct(splits: Splits, *bits: Reals) -> tuple[Reals, Indices]:
    """Return distinct rows of splits and bits, and for each option which row is its own."""
    rows, inverse = np.unique(np.column_stack([splits, *bits]), axis=0, return_inverse=True)
    return rows, inverse.ravel()
