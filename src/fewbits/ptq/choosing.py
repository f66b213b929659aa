"""The weights of one layer, chosen for its inputs; never worse there than those rounded to nearest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fewbits.errors import DataError
from fewbits.ptq.gpfq import gpfq
from fewbits.ptq.gptq import gptq
from fewbits.ptq.grid import Grid, Target, grid
from fewbits.ptq.hadamard import rotate_weight
from fewbits.ptq.layers import ProductLayer
from fewbits.ptq.moments import Moments
from fewbits.ptq.scales import searched

METHODS = ("round", "gptq", "gpfq")
SCALES = ("amax", "search")


@dataclass(frozen=True)
class Choice:
    """How weights are chosen."""

    method: str = "gptq"
    scale: str = "amax"
    damping: float = 0.01


@dataclass(frozen=True)
class ChosenWeight:
    """The weight of a layer, with what it and rounding do to the layer's outputs."""

    weight: Tensor  # as the layer holds it
    power: float  # sum of squares of the outputs
    rounding_loss: float  # squared error of the outputs with the weight rounded to nearest
    loss: float  # and with this one
    hadamard: int = 0  # size of the blocks in which the inputs are rotated for it; 0: they are not


def choose_each(
    layer: ProductLayer, moments: Iterable[Moments], target: Target, choice: Choice
) -> Iterator[ChosenWeight]:
    """Choose the weight of a layer for each rotation of its inputs.

    Args:
        layer: its weight is finite, and of inputs that are not rotated.
        moments: of the inputs in each rotation.
        target: the format.
        choice: the method.

    Raises:
        DataError: see :func:`choose`.
    """
    for offered in moments:
        if not offered.size:
            yield choose(layer, offered, target, choice)
            continue
        weight = layer.weight.clone()
        rotate_weight(layer, offered.size)
        try:
            chosen = choose(layer, offered, target, choice)
        finally:
            layer.weight.copy_(weight)
        yield replace(chosen, hadamard=offered.size)


def choose_rotation(
    layer: ProductLayer, moments: Iterable[Moments], target: Target, choice: Choice
) -> ChosenWeight:
    """Return that of :func:`choose_each` which loses least, with the smallest blocks of those."""
    found = choose_each(layer, moments, target, choice)
    return min(found, key=lambda chosen: (chosen.loss, chosen.hadamard))


def choose(layer: ProductLayer, moments: Moments, target: Target, choice: Choice) -> ChosenWeight:
    """Choose the weight of a layer, given the moments of its inputs.

    Args:
        layer: its weight is finite.
        moments: of the inputs that it will take.
        target: the format.
        choice: the method.

    Returns:
        Values that quantizing leaves as they are. Each output keeps those of the method, or those of rounding
        where they lose less.

    Raises:
        DataError: rounded weights change when they are rounded again, without an end.
    """
    w = layer.matrices(layer.weight.double())
    nearest = target.nearest(layer.in_blocks)
    if nearest is None:
        raise DataError(
            f"{target.format} has no values for these weights that quantizing leaves as they are; take"
            " another format, or leave the layer out"
        )
    plain = layer.from_blocks(nearest).double()
    rounding_loss = moments.loss(w, plain)
    best, loss = nearest, rounding_loss
    values = target.settled(_values(layer, w, moments, target, choice))
    if values is not None:
        own = moments.loss(w, layer.from_blocks(values).double())
        rows = (own < rounding_loss)[..., None]
        mixed = layer.to_blocks(torch.where(rows, layer.from_blocks(values), layer.from_blocks(nearest)))
        # Rows of two origins may disagree about a scale that they share.
        if target.settled(mixed) is mixed:
            best, loss = mixed, torch.minimum(own, rounding_loss)
        elif own.sum() < rounding_loss.sum():
            best, loss = values, own
    weight = best.reshape(layer.weight.shape)
    power, by_rounding, lost = (float(x.sum()) for x in (moments.power(w), rounding_loss, loss))
    return ChosenWeight(weight, power, by_rounding, lost)


def _values(layer: ProductLayer, w: Tensor, moments: Moments, target: Target, choice: Choice) -> Tensor:
    """Return the values that the method gives, arranged in blocks, in the weight's dtype."""
    dtype = layer.weight.dtype
    goal = moments.best(w, choice.damping) if choice.method == "gptq" else w
    blocks = layer.to_blocks(goal).to(dtype)
    like = None
    if choice.scale == "search":
        mean_square = moments.gram.diagonal(dim1=-2, dim2=-1)[:, None].expand(w.shape)
        like = searched(blocks, layer.to_blocks(mean_square), target)
    allowed = grid(blocks, target, like).arranged(layer.from_blocks)
    chosen = [_matrix(goal[i], moments, i, allowed.of_group(i), choice) for i in range(len(w))]
    return layer.to_blocks(torch.stack(chosen)).to(dtype)


def _matrix(w: Tensor, moments: Moments, group: int, grid: Grid, choice: Choice) -> Tensor:
    if choice.method == "gptq":
        return gptq(w, moments.gram[group], grid.nearest, damping=choice.damping)
    if choice.method == "gpfq":
        return gpfq(w, moments.gram[group], moments.cross[group], grid.nearest)
    return grid.nearest(w)
