"""The training loop: one step at a time, every bit of its state in the open."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fewbits.nn import Watch, prepare
from fewbits.optim import AdamW, scaler
from fewbits.recipes import Recipe
from fewbits.sparsity import MaskedOptimizer
from fewbits.train.schedules import Schedule, schedule
from fewbits.train.tasks import Task

SKIPPED_IN_A_ROW = 10  # steps without an update, one after the other, that are worth a warning
LEAST_SCALE = 1.0


class Trainer:
    """Trains a task's model by a recipe: AdamW, a warm-up over a tenth of the steps, cosine decay.

    Args:
        task: model, loss and sizes.
        recipe: what is narrow.
        seed: of the initial weights and of stochastic rounding. Batches are the same for every seed.
        steps: how many the learning rate is planned for.
        watch_every: steps from one look at the rounding to the next.
        begin: called with the model before it is prepared: to load weights, or to make it sparse.
    """

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        *,
        seed: int,
        steps: int,
        watch_every: int = 50,
        begin: Callable[[nn.Module], object] | None = None,
    ) -> None:
        self.task, self.recipe, self.steps = task, recipe, steps
        self.watch = Watch(watch_every)
        created = task.create(seed)
        if begin is not None:
            begin(created)
        self.model: nn.Module = prepare(created, recipe, watcher=self.watch).train()
        hyper = task.hyper
        optimizer = AdamW(
            self.model.parameters(),
            lr=hyper.learning_rate,
            betas=(0.9, hyper.beta2),
            weight_decay=hyper.weight_decay,
            recipe=recipe,
        )
        sparse = hasattr(self.model, "fewbits_sparsity")
        self.optimizer = MaskedOptimizer(optimizer, self.model) if sparse else optimizer
        self.scaler = scaler(recipe)
        self.schedule: Schedule = schedule(self.model, recipe, steps)
        self.batches = torch.Generator().manual_seed(0)
        self.step_number = 0
        self.skipped = 0  # in a row
        self.bytes_per_value = 0.0  # of parameters, gradients and states, as they lay in the last step

    def step(self) -> dict[str, Any]:
        """Train on one batch and return what happened: loss, rate, loss scale, whether it was skipped."""
        rate = self.task.hyper.learning_rate * _rate(self.step_number, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self.task.loss(self.model, self.batches)
        self.optimizer.zero_grad()
        scale = float(self.scaler.get_scale())
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.schedule.after_backward()
        norm = self.optimizer.clip_(self.task.hyper.largest_gradient, loss_scale=scale)
        finite = math.isfinite(norm)
        self.bytes_per_value = self.optimizer.nbytes()["per_value"] if self.step_number else 0.0
        with self.watch.update_of(self.model):
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.step_number += 1
        self.watch.next_step()
        self.schedule.after_step()
        self._judge(finite, scale)
        return {
            "step": self.step_number,
            "loss": float(loss.detach()),
            "learning_rate": rate,
            "gradient_norm": norm if finite else None,
            "loss_scale": scale,
            "skipped": not finite and self.scaler.is_enabled(),
        }

    def _judge(self, finite: bool, scale: float) -> None:
        self.skipped = 0 if finite else self.skipped + 1
        if not self.scaler.is_enabled():
            if not finite:
                self.watch.say("training diverged: gradients are not finite, and the update was applied")
        elif self.skipped == SKIPPED_IN_A_ROW or scale < LEAST_SCALE:
            self.watch.say(
                f"the loss scale collapses: it is {scale:g}, and {self.skipped} steps in a row were skipped;"
                " gradients are not finite at any scale: lower the learning rate, or use a format with more"
                " range"
            )

    def evaluate(self) -> float:
        """Return the task's metric on held-out data."""
        self.model.eval()
        try:
            return self.task.evaluate(self.model)
        finally:
            self.model.train()


def _rate(step: int, steps: int) -> float:
    """Return the part of the peak learning rate: linear up over a tenth of the steps, then a cosine down."""
    warm = max(1, steps // 10)
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
