"""Weights that devices share out beyond what a split does: fully sharded data parallelism.

Where all devices work on samples of their own, each holds a part of every parameter, its gradient and the
states of the optimizer (Rajbhandari et al., ZeRO, 2020, stage 3). A layer gathers its weights before it
computes forward and again before it does backward, and the sum of their gradients is scattered: three halves
of what an all-reduce sends. The parts are rows, as ``fully_shard`` of torch deals them: where the devices do
not divide the rows, zeros travel in place of those that are missing.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from fewbits.planner.configurations import Splits, lacking
from fewbits.planner.graph import Layer, Operand


def shardable(layer: Layer, splits: Splits, devices: int) -> NDArray[np.bool_]:
    """Tell of which splits, (k, d), the weights can be sharded.

    They are trained and have rows, a module can gather them, and all devices have a part of the output's
    values, for which each needs all weights.
    """
    weights = layer.weights
    if devices == 1 or not weights or layer.unsharded or any(not w.trained or not w.shape for w in weights):
        return np.zeros(len(splits), bool)
    summed = set(lacking(layer, layer.output))
    over = [i for i in range(len(layer.space)) if i not in summed and _all_lack(weights, layer.space[i].name)]
    return np.asarray(splits[:, over].prod(axis=1) == devices)


def padded(weight: Operand, devices: int) -> int:
    """Return the values of a weight that is sharded, with zeros where the devices do not divide its rows."""
    rows, *rest = weight.shape
    return -(-rows // devices) * devices * prod(rest)


def _all_lack(weights: tuple[Operand, ...], dimension: str) -> bool:
    return not any(dimension in w.axes for w in weights)
