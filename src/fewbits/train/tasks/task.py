"""What a built-in task is: a model that can be trained and a number that says how good it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Progress = Callable[[int, int, float], None]  # steps done, steps in all, loss of the last step


def silent(step: int, steps: int, loss: float) -> None:
    """Take a progress report and show nothing."""


@dataclass(frozen=True)
class Hyperparameters:
    """How long and how hard to train."""

    steps: int
    batch: int  # windows or images in one step
    learning_rate: float  # its peak, reached after a tenth of the steps
    weight_decay: float = 0.1
    beta2: float = 0.98  # of AdamW; below the usual 0.999 because there are only hundreds of steps
    largest_gradient: float = 1.0  # norm to which the gradient is clipped


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
    create: Callable[[int], nn.Module]  # seed -> model with its initial weights
    loss: Callable[[nn.Module, torch.Generator], Tensor]  # mean loss on a batch that the generator draws
    hyper: Hyperparameters
    resolution: float = 0.0  # smallest step of the metric, that of one test image; 0 for a continuous one
    small: bool = True  # so small that a second thread costs more than it gives
