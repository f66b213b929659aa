"""The learning rate of each step, from its peak and the number of steps: a rise, and a way down."""

from __future__ import annotations

import math
from collections.abc import Callable

LearningRate = Callable[[float, int, int], float]
"""``rate(peak, step, steps)``: the learning rate of a step, counted from 0."""

WARM_UP = 0.1  # share of the steps in which the rate rises
_START, _END = 25.0, 1e4  # of one_cycle: the peak over the first rate, the first rate over the last one


def linear_warm_up(peak: float, step: int, steps: int) -> float:
    """Rise on a straight line over a tenth of the steps, then fall on a cosine to zero."""
    rise, fall = _parts(step, steps)
    return peak * (rise if rise < 1 else 0.5 * (1 + math.cos(math.pi * fall)))


def polynomial(peak: float, step: int, steps: int) -> float:
    """Rise on a straight line over a tenth of the steps, then fall to zero as the square of what is left.

    Jia et al., Highly Scalable Deep Learning Training System with Mixed-Precision, 2018.
    """
    rise, fall = _parts(step, steps)
    return peak * (rise if rise < 1 else (1 - fall) ** 2)


def _parts(step: int, steps: int) -> tuple[float, float]:
    """Return which part of the warm-up is done, 1 behind it, and which part of the steps behind it."""
    warm = max(1, steps // 10)
    return min((step + 1) / warm, 1.0), max((step - warm) / max(1, steps - warm), 0.0)


def one_cycle(peak: float, step: int, steps: int) -> float:
    """Rise on a cosine over a tenth of the steps, then fall on another one.

    :class:`torch.optim.lr_scheduler.OneCycleLR` with ``pct_start=0.1``, bit for bit (Smith and Topin,
    Super-Convergence, 2018).
    """
    first, top = peak / _START, WARM_UP * steps - 1
    if step <= top > 0:
        return _cosine(first, peak, step / top)
    return _cosine(peak, first / _END, (step - top) / (steps - 1 - top))


OF_RECIPES: dict[str, LearningRate] = {"cosine": linear_warm_up, "polynomial": polynomial}
"""The learning rates that a recipe names as its ``lr_schedule``."""


def _cosine(start: float, end: float, part: float) -> float:
    return end + (start - end) / 2.0 * (math.cos(math.pi * part) + 1)
