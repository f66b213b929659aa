"""The scale of each block that loses least, in the place of the one that its largest value asks for."""

from __future__ import annotations

import torch
from torch import Tensor

from fewbits.formats import Format
from fewbits.kernels import has_scale_rule
from fewbits.ptq.blocks import anchors, blocks_of, scale_size, spread
from fewbits.ptq.grid import Target, grid

# Largest value that a scale is made for, as a part of the block's own: one binade up and two down for powers
# of two, finer steps for real scales, whose anchor stays at the largest element and so cannot grow.
_POWERS = (2.0, 0.5, 0.25)
_REALS = tuple(1 - i / 20 for i in range(1, 11))


def searched(w: Tensor, importance: Tensor, target: Target) -> Tensor:
    """Return a matrix like w from which quantizing finds the scales that lose least.

    The loss of a block is the sum of the squared errors of its values, rounded to nearest, times their
    importance. What carries a scale over the scales of a tensor or channel stays as it is.

    Args:
        w: (rows, n), blocks along rows.
        importance: of the same shape, float64: the mean square of what each weight is multiplied by.
        target: the format and its scale rule.
    """
    if target.format.groups.scales is None:
        return w
    size = scale_size(target.format)
    places = anchors(w, size)
    fixed = _carriers(w, target.format)
    best, least = w, _loss(w, w, importance, target)
    for part in _POWERS if has_scale_rule(target.format) else _REALS:
        like = torch.where(fixed, w, _stretched(w, part, places, size))
        loss = _loss(w, like, importance, target)
        better = spread(loss < least, size, w.shape)
        best, least = torch.where(better, like, best), torch.minimum(loss, least)
    return best


def _stretched(w: Tensor, part: float, places: Tensor, size: int | str) -> Tensor:
    """Return w with the largest magnitude of each block times ``part``, and nothing above that."""
    limit = spread(blocks_of(w.abs(), size).amax(2), size, w.shape) * part
    clipped = torch.minimum(torch.maximum(w, -limit), limit)
    return torch.where(places, torch.copysign(limit, w), clipped)


def _loss(w: Tensor, like: Tensor, importance: Tensor, target: Target) -> Tensor:
    """Return the loss of each block, (lines, blocks)."""
    error = grid(w, target, like).nearest(w.double()) - w.double()
    return blocks_of(error.square() * importance, scale_size(target.format)).sum(2)


def _carriers(w: Tensor, format: Format) -> Tensor:
    """Return where blocks lie whose largest value decides an outer scale."""
    if format.groups.outer is None:
        return torch.zeros(w.shape, dtype=torch.bool, device=w.device)
    over = anchors(w, format.groups.outer.size)
    size = scale_size(format)
    return spread(blocks_of(over, size).any(2), size, w.shape)
