"""A task as data: a model to train, batches, a loss, and a number that says how good the model is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, ...]
"""One batch, in whatever tensors the loss of its task takes."""


@dataclass(frozen=True)
class Hyperparameters:
    """How long and how hard to train."""

    steps: int
    batch_size: int  # windows or images in one step
    lr: float  # learning rate: its peak, reached after a tenth of the steps
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.98)  # of AdamW; 0.999 is too slow for hundreds of steps
    max_norm: float = 1.0  # norm to which the gradient is clipped
    momentum: float = 0.9  # of SGD and LARS
    gradient_decay: float = 5e-5  # of SGD and LARS: the weights times this are added to their gradient


@dataclass(frozen=True)
class Task:
    """What `fewbits train`, `prune` and `compare` need to know of a model, built in or the user's own.

    Attributes:
        name: in tables and in the names of folders.
        metric: in tables: ``accuracy``, which is in percent, ``loss``, or a name of your own.
        lower_is_better: whether a smaller metric is a better model.
        create: returns the model with its initial weights, which depend on the seed and on nothing else.
        draw_batch: returns a batch of so many samples, which depends on the generator and on nothing else.
        loss: returns the mean loss of a model on a batch, a scalar.
        evaluate: returns the metric of a model in eval mode on held-out data, the same at each call.
        hyper: how long and how hard to train.
        resolution: smallest step of the metric, that of one test image; 0 for a continuous one.
        single_thread: whether the model is so small that a second thread costs more than it gives.
        cache_path: returns where the FP32 model of a seed is kept; None: it is trained anew each time.
    """

    name: str
    metric: str
    lower_is_better: bool
    create: Callable[[int], nn.Module]
    draw_batch: Callable[[torch.Generator, int], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    evaluate: Callable[[nn.Module], float]
    hyper: Hyperparameters
    resolution: float = 0.0
    single_thread: bool = False
    cache_path: Callable[[int], Path] | None = None


def created(create: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a new model whose initial weights come from ``seed``; torch's generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return create()
