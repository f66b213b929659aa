"""The learning rate of each step, from its peak and the number of steps: a rise, and a cosine down."""

from __future__ import annotations

import math
from collections.abc import Callable

LearningRate = Callable[[float, int, int], float]
"""``rate(peak, step, steps)``: the learning rate of a step, counted from 0."""

WARM_UP = 0.1  # share of the steps in which the rate rises
_START, _END = 25.0, 1e4  # of one_cycle: the peak over the first rate, the first rate over the last one


def linear_warm_up(peak: float, step: int, steps: int) -> float:
    """Rise on a straight line over a tenth of the steps, then fall on a cosine to zero."""
    warm = max(1, steps // 10)
    if step < warm:
        return peak * ((step + 1) / warm)
    return peak * (0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))))


def one_cycle(peak: float, step: int, steps: int) -> float:
    """Rise on a cosine over a tenth of the steps, then fall on another one.

    :class:`torch.optim.lr_scheduler.OneCycleLR` with ``pct_start=0.1``, bit for bit (Smith and Topin,
    Super-Convergence, 2018).
    """
    first, top = peak / _START, WARM_UP * steps - 1
    if step <= top > 0:
        return _cosine(first, peak, step / top)
    return _cosine(peak, first / _END, (step - top) / (steps - 1 - top))


def _cosine(start: float, end: float, part: float) -> float:
    return end + (start - end) / 2.0 * (math.cos(math.pi * part) + 1)
