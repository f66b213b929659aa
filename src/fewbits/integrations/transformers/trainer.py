"""Hugging Face's Trainer by a recipe: its optimizer, loss scale and schedule, kept in its checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from transformers import Trainer, TrainerCallback, TrainingArguments

from fewbits.errors import ArgumentError
from fewbits.files import load_file, save_file
from fewbits.optim import AdamW, scaler
from fewbits.recipes import Recipe
from fewbits.train.schedules import Schedule, schedule

_FILE = "schedule.safetensors"  # in the folder of a checkpoint
_KEY = "schedule"


class RecipeTrainer(Trainer):  # type: ignore[misc]  # transformers is not typed for us
    """Hugging Face's Trainer for a prepared model: ``RecipeTrainer(prepare(model, "fp8-lm"), args, ...)``.

    It makes :class:`fewbits.optim.AdamW` with the model's recipe from the arguments, unless ``optimizers``
    holds one, scales the loss, unscales gradients before they are clipped, and runs the recipe's schedule.

    Args:
        model: that :func:`fewbits.nn.prepare` was called with.
        args: Hugging Face's; without ``fp16``, since the recipe has its own loss scale.
        more: what else their Trainer takes, by name.

    Raises:
        ArgumentError: the model was not prepared, or ``fp16`` is asked for.
    """

    def __init__(self, model: nn.Module, args: TrainingArguments | None = None, **more: object) -> None:
        recipe = getattr(model, "fewbits_recipe", None)
        if not isinstance(recipe, Recipe):
            raise ArgumentError(
                f"{type(model).__name__} was not prepared; call fewbits.nn.prepare(model, recipe) first"
            )
        if args is not None and args.fp16:
            raise ArgumentError(
                f"fp16=True beside recipe {recipe.name!r}, which says what is narrow; leave fp16 out"
            )
        self.recipe = recipe
        self.schedule: Schedule | None = None
        self._looked = False  # at the gradients of this step
        super().__init__(model, args, **more)
        self.add_callback(_Schedule(self))

    def create_accelerator_and_postprocess(self) -> None:
        """Give the accelerator the recipe's loss scale; it has one of its own only under fp16."""
        super().create_accelerator_and_postprocess()
        if self.recipe.scaling is not None:
            self.accelerator.scaler = scaler(self.recipe)
        self.accelerator.unscale_gradients = self._before_clipping

    def _before_clipping(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Observe and unscale the gradients; the accelerator calls this once in a step, before it clips."""
        self.look()
        if self.recipe.scaling is not None:
            ours = self.optimizer if optimizer is None else optimizer
            self.accelerator.scaler.unscale_(getattr(ours, "optimizer", ours))

    def look(self) -> None:
        """Show the schedule the gradients of this step, before they are clipped."""
        if self.schedule is not None and not self._looked:
            self.schedule.after_backward()
        self._looked = True

    def count(self) -> None:
        """Count an update in the schedule."""
        if self.schedule is not None:
            self.schedule.after_step()
        self._looked = False

    def create_optimizer(self, *model: nn.Module) -> torch.optim.Optimizer:
        """Make AdamW with the model's recipe, where no optimizer was given."""
        if self.optimizer is None and self.optimizer_cls_and_kwargs is None:
            if self.recipe.optimizer != "adamw":
                raise ArgumentError(
                    f"recipe {self.recipe.name!r} trains by {self.recipe.optimizer}, and this trainer makes"
                    f" AdamW; give it optimizers=(fewbits.optim.{self.recipe.optimizer.upper()}(...), None)"
                )
            args = self.args
            options = {
                "lr": args.learning_rate,
                "betas": (args.adam_beta1, args.adam_beta2),
                "eps": args.adam_epsilon,
                "recipe": self.recipe,
            }
            self.optimizer_cls_and_kwargs: Any = (AdamW, options)
        optimizer: torch.optim.Optimizer = super().create_optimizer(*model)
        return optimizer

    def create_scheduler(
        self, num_training_steps: int, *optimizer: torch.optim.Optimizer, **more: object
    ) -> LRScheduler:
        """Make the recipe's schedule beside that of the learning rate."""
        self.schedule = schedule(self.model, self.recipe, num_training_steps)
        scheduler: LRScheduler = super().create_scheduler(num_training_steps, *optimizer, **more)
        return scheduler

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.schedule is not None and self.recipe.schedule and self.args.should_save:
            tensors = {_KEY: torch.tensor(self.schedule.step), **self.schedule.tensors()}
            state = json.dumps(self.schedule.state_dict())
            save_file(tensors, Path(output_dir) / _FILE, {_KEY: state})

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        path = Path(checkpoint or "") / _FILE
        if checkpoint is not None and self.schedule is not None and path.is_file():
            tensors = load_file(path)
            self.schedule.load_tensors({name: t for name, t in tensors.items() if name != _KEY})
            with safe_open(path, "pt") as file:
                self.schedule.load_state_dict(json.loads(file.metadata()[_KEY]))


class _Schedule(TrainerCallback):  # type: ignore[misc]  # transformers is not typed for us
    """Calls a trainer's schedule around each update."""

    def __init__(self, trainer: RecipeTrainer) -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(self, *_: object, **__: object) -> None:
        """Observe the gradients if they were not clipped."""
        self.trainer.look()

    def on_optimizer_step(self, *_: object, **__: object) -> None:
        """Count the update."""
        self.trainer.count()
