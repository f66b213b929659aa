"""What a built-in task is: a model that can be trained and a number that says how good it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

Progress = Callable[[int, int, float], None]  # steps done, steps in all, loss of the last step


def silent(step: int, steps: int, loss: float) -> None:
    """Take a progress report and show nothing."""


@dataclass(frozen=True)
class Task:
    """A model trained in FP32 on real data, and its metric on held-out data."""

    name: str  # "bytes" or "digits"
    metric: str  # "nll" (nats per byte) or "accuracy" (percent)
    lower_is_better: bool
    train: Callable[
        [int, Progress], nn.Module
    ]  # seed -> model in eval mode, from the cache where that has it
    evaluate: Callable[[nn.Module], float]  # the metric on the held-out sample, the same at each call
