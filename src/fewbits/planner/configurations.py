"""The ways to split a layer: for each dimension over how many devices it is shared out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import gcd, prod

import numpy as np
from numpy.typing import NDArray

from fewbits.planner.graph import Layer, Operand

Splits = NDArray[np.int64]


def mesh_splits(layer: Layer, devices: int) -> Splits:
    """Return all splits (k, d) whose product divides the devices, and which divide their extents.

    Such splits are products of a mesh's dimensions, one for each prime factor of the devices. The first is
    no split at all.
    """
    common = [gcd(devices, d.extent) if d.splittable else 1 for d in layer.space]
    parts = [[n for n in range(1, most + 1) if most % n == 0] for most in common]
    found: list[tuple[int, ...]] = [()]
    for part in parts:
        found = [(*c, n) for c in found for n in part if devices % (prod(c) * n) == 0]
    return np.array(found, np.int64).reshape(len(found), len(parts))


def divisor_splits(layer: Layer, devices: int, least: int) -> Splits:
    """Return all splits by divisors of the extents that leave at least so much, of devices in all at most.

    As in PaSE (Elango 2021, section IV): a dimension that is too short is not split.
    """
    parts = []
    for d in layer.space:
        most = d.extent // least if d.splittable else 1
        parts.append([n for n in range(1, min(most, devices) + 1) if d.extent % n == 0] or [1])
    found = [c for c in itertools.product(*parts) if prod(c) <= devices]
    return np.array(found, np.int64).reshape(len(found), len(parts))


def axis_splits(layer: Layer, operand: Operand, splits: Splits) -> Splits:
    """Return how the axes of an operand are split, (k, axes)."""
    at = {d.name: i for i, d in enumerate(layer.space)}
    columns = [splits[:, at[axis]] if axis is not None else np.ones(len(splits), np.int64)
               for axis in operand.axes]  # fmt: skip
    return np.stack(columns, axis=1) if columns else np.ones((len(splits), 0), np.int64)


def lacking(layer: Layer, operand: Operand) -> list[int]:
    """Return the dimensions that an operand does not have, over which its pieces are summed."""
    return [i for i, d in enumerate(layer.space) if d.name not in operand.axes]


def batch_dimension(layer: Layer) -> int | None:
    """Return the dimension that samples run along: that of the first axis of the output; None: none."""
    first = next(iter(layer.output.axes), None)
    names: Sequence[str] = [d.name for d in layer.space]
    return None if first is None else names.index(first)
