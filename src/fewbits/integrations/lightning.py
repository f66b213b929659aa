"""Lightning's Trainer by a recipe: its loss scale and its schedule, kept in Lightning's checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict, cast

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins import Precision

from fewbits.errors import ArgumentError
from fewbits.optim import scaler
from fewbits.recipes import Recipe
from fewbits.recipes import recipe as read
from fewbits.train.schedules import Schedule, schedule
from fewbits.typing import StateDict

__all__ = ["RecipePrecision"]

_Connected = tuple[LightningModule, list[torch.optim.Optimizer], list[object]]


class _State(TypedDict):
    """What ``state_dict`` returns; of the schedule only if there is one."""

    scaler: StateDict
    schedule: StateDict
    tensors: dict[str, torch.Tensor]


class RecipePrecision(Precision):  # type: ignore[misc]  # Lightning is not typed for us
    """The precision plugin of a recipe: ``Trainer(plugins=RecipePrecision("fp8-lm"))``.

    Prepare the model in the module's ``__init__`` and return an optimizer of :mod:`fewbits.optim` from
    ``configure_optimizers``, both with the same recipe. The plugin scales the loss, unscales gradients before
    Lightning clips them, skips steps that overflow and runs the recipe's schedule. A recipe with neither
    scaling nor schedule trains without it as well.

    Args:
        recipe: a recipe or its text.

    Raises:
        ArgumentError: no such recipe.
    """

    precision = "32-true"

    def __init__(self, recipe: str | Recipe) -> None:
        super().__init__()
        self.recipe = read(recipe)
        self.scaler = scaler(self.recipe)
        self.schedule: Schedule | None = None

    def connect(
        self, model: LightningModule, optimizers: list[torch.optim.Optimizer], lr_schedulers: list[object]
    ) -> _Connected:
        """Make the schedule, for as many steps as the trainer plans.

        Raises:
            ArgumentError: the recipe has a schedule, and the trainer no number of steps; or the module was
                not prepared, or with another recipe.
        """
        if optimizers:
            steps = model.trainer.estimated_stepping_batches if self.recipe.schedule else 1
            if steps == float("inf"):
                raise ArgumentError(
                    f"recipe {self.recipe.name!r} changes formats on the way, and the trainer has no end;"
                    " give it max_epochs or max_steps"
                )
            self.schedule = schedule(model, self.recipe, max(1, int(steps)))  # a fit may take none
        connected: _Connected = super().connect(model, optimizers, lr_schedulers)
        return connected

    def pre_backward(self, tensor: torch.Tensor, module: LightningModule) -> torch.Tensor:
        """Scale the loss."""
        scaled: torch.Tensor = super().pre_backward(self.scaler.scale(tensor), module)
        return scaled

    def optimizer_step(
        self,
        optimizer: torch.optim.Optimizer,
        model: LightningModule,
        closure: Callable[[], object],
        **kwargs: object,
    ) -> object:
        """Take a step: backward, unscale, clip, update."""
        result = closure()
        if result is None and model.automatic_optimization:  # training_step has left this batch out
            return None
        if self.schedule is not None:
            self.schedule.after_backward()
        self.scaler.unscale_(optimizer)
        self._after_closure(model, optimizer)
        self.scaler.step(optimizer, **kwargs)
        self.scaler.update()
        if self.schedule is not None:
            self.schedule.after_step()
        return result

    def state_dict(self) -> StateDict:
        """Return what a checkpoint keeps: loss scale and schedule."""
        state: StateDict = {"scaler": self.scaler.state_dict()}
        if self.schedule is not None:
            state |= {"schedule": self.schedule.state_dict(), "tensors": self.schedule.tensors()}
        return state

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take over what :meth:`state_dict` returned."""
        saved = cast(_State, state_dict)
        if saved["scaler"]:
            self.scaler.load_state_dict(saved["scaler"])
        if self.schedule is not None and "schedule" in saved:
            self.schedule.load_tensors(saved["tensors"])
            self.schedule.load_state_dict(saved["schedule"])
