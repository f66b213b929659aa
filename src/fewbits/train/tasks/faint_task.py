"""The task "faint": digits again, with gradients and updates as small as they are late in long training.

A recipe that loses small gradients or small updates trains the other tasks as well as any: there both are
large. Here the loss is divided by a million, so that FP16 gradients vanish without a loss scale, and weights
are large beside the learning rate, so that an update is less than half a unit in the last place of bfloat16
and of FP16. Norms follow the weights: what the network computes does not depend on their size, and FP32
learns as if nothing had happened.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from fewbits.train.tasks.digits_task import digits_loss, drawn, score, train_and_held_out
from fewbits.train.tasks.task import Batch, Hyperparameters, Task, created

SCALE = 2.0**-20  # of the loss
LARGE = 8.0  # what initial weights are multiplied by
_HYPER = Hyperparameters(steps=400, batch_size=32, lr=1e-3, weight_decay=0.0, gradient_decay=0.0)


class FaintModel(nn.Module):
    """Two layers of large weights, each with a norm behind it, and the logits."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Linear(64, width), nn.LayerNorm(width)
        self.second, self.second_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.head, self.head_norm = nn.Linear(width, 10), nn.LayerNorm(10)
        with torch.no_grad():
            for layer in (self.first, self.second, self.head):
                layer.weight.mul_(LARGE)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits ``(n, 10)`` of images ``(n, 1, 8, 8)``."""
        x = functional.relu(self.first_norm(self.first(images.flatten(1) - 0.3)))
        x = functional.relu(self.second_norm(self.second(x)))
        logits: Tensor = self.head_norm(self.head(x))
        return logits


def faint_task() -> Task:
    """Return the task; its metric is the loss on held-out digits, in nats and not divided.

    Raises:
        MissingDependencyError: scikit-learn, which brings the images, is not installed.
    """
    train_set, held_out = train_and_held_out()
    return Task(
        name="faint",
        metric="image_nll",
        lower_is_better=True,
        create=partial(created, FaintModel),
        draw_batch=partial(drawn, digits=train_set),
        loss=_loss,
        evaluate=lambda model: score(model, held_out).nll,
        hyper=_HYPER,
        single_thread=True,
    )


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    return digits_loss(model, batch) * SCALE
