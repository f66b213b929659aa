"""The training loop, one step at a time; its whole state is in public attributes, for checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeGuard

import torch
from torch import nn

from fewbits.distributed import ZeroOptimizer
from fewbits.nn import RoundingObserver
from fewbits.optim import Optimizer
from fewbits.recipes import RECIPES
from fewbits.sparsity import MaskedOptimizer
from fewbits.train.learning_rates import LearningRate, linear_warm_up
from fewbits.train.schedules import Schedule
from fewbits.train.step import Step
from fewbits.train.tasks import Task
from fewbits.train.together import Together

SKIPPED_IN_A_ROW = 10  # steps without an update, one after the other, that are worth a warning
LEAST_SCALE = 1.0


class Trainer:
    """Trains a model on the batches of a task; iterate over it, or call :meth:`step`.

    The batches are the same for every seed: seeds differ by initial weights and stochastic rounding only.

    Args:
        task: batches, loss, evaluation and hyperparameters.
        model: is trained in place.
        optimizer: of the model's parameters; its learning rate is set in each step.
        steps: how many the learning rate is planned for; 0: as many as the task says.
        lr_schedule: the learning rate of each step, from the task's peak, the step and the number of steps.
        scaler: of the loss; None: the loss is not scaled.
        schedule: of the formats; None: they stay.
        observer: sees what rounding does, and takes the warnings of the loop.
        together: the other processes that train the model; None: there are none.
    """

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        steps: int = 0,
        lr_schedule: LearningRate = linear_warm_up,
        scaler: torch.amp.GradScaler | None = None,
        schedule: Schedule | None = None,
        observer: RoundingObserver | None = None,
        together: Together | None = None,
    ) -> None:
        self.task, self.model, self.optimizer = task, model.train(), optimizer
        self.steps = steps or task.hyper.steps
        self.lr_schedule = lr_schedule
        self.scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
        self.schedule = schedule or Schedule(model, RECIPES["fp32"], self.steps)
        self.observer = observer or RoundingObserver()
        self.together = together
        self.batches = torch.Generator().manual_seed(0)
        self.step_number = 0
        self.skipped = 0  # steps without an update, since the last one with
        self.bytes_per_value = 0.0  # of parameters, gradients and states, as they lay in the last step

    def __iter__(self) -> Iterator[Step]:
        """Train until all steps are done, and yield what happened in each."""
        while self.step_number < self.steps:
            yield self.step()

    def step(self) -> Step:
        """Train on one batch, and return what happened."""
        hyper = self.task.hyper
        lr = self.lr_schedule(hyper.lr, self.step_number, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        batch, others = self.task.draw_batch(self.batches, hyper.batch_size), self.together
        loss = self.task.loss(self.model, batch if others is None else others.part(batch))
        self.optimizer.zero_grad()
        scale = float(self.scaler.get_scale())
        self.scaler.scale(loss).backward()
        if others is not None:
            others.after_backward()
        self.schedule.after_backward()
        norm = self._clip(hyper.max_norm, scale)
        with self.observer.update_of(self.model):
            self.scaler.step(self.optimizer)
        if _is_narrow(self.optimizer):  # the first step has made the states by now
            self.bytes_per_value = self.optimizer.nbytes()["per_value"]
        self.scaler.update()
        self.step_number += 1
        if others is not None:
            others.after_step(last=self.step_number == self.steps)
        self.observer.next_step()
        self.schedule.after_step()
        finite = math.isfinite(norm)
        self._warn(finite, scale)
        return Step(
            step=self.step_number,
            loss=float(loss.detach()) if others is None else others.mean(float(loss.detach())),
            lr=lr,
            gradient_norm=norm if finite else None,
            loss_scale=scale,
            skipped=not finite and self.scaler.is_enabled(),
        )

    def _clip(self, largest: float, scale: float) -> float:
        """Shrink the gradients to a norm of at most ``largest``, and return the norm before."""
        if _is_narrow(self.optimizer):  # gradients may be packed, and are scaled still
            return self.optimizer.clip_(largest, loss_scale=scale)
        return float(nn.utils.clip_grad_norm_(self.model.parameters(), largest))

    def _warn(self, finite: bool, scale: float) -> None:
        """Count the steps without an update, and warn where training diverges."""
        self.skipped = 0 if finite else self.skipped + 1
        if not self.scaler.is_enabled():
            if not finite:
                self.observer.say("training diverged: gradients are not finite, and the update was applied")
        elif self.skipped == SKIPPED_IN_A_ROW or scale < LEAST_SCALE:
            self.observer.say(
                f"the loss scale collapses: it is {scale:g}, and {self.skipped} steps in a row were skipped;"
                " gradients are not finite at any scale: lower the learning rate, or use a format with more"
                " range"
            )

    def evaluate(self) -> float:
        """Return the task's metric of the model as it is trained, on held-out data."""
        self.model.eval()
        try:
            return self.task.evaluate(self.model)
        finally:
            self.model.train()

    def plain_model(self) -> nn.Module:
        """Return the task's own model in eval mode, not prepared, with the weights of this one."""
        plain = self.task.create(0)
        plain.load_state_dict(self.model.state_dict())
        return plain.eval()


def _is_narrow(optimizer: torch.optim.Optimizer) -> TypeGuard[Optimizer]:
    """Whether an optimizer of fewbits takes the steps, wrapped or not."""
    if isinstance(optimizer, (MaskedOptimizer, ZeroOptimizer)):
        optimizer = optimizer.optimizer
    return isinstance(optimizer, Optimizer)
