"""Steps that can be profiled: of a built-in task by a recipe, and of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fewbits.profiling.marks import marked
from fewbits.train.by_recipe import recipe_trainer
from fewbits.train.tasks import Task
from fewbits.train.tasks.user_model import user_function

Step = Callable[[], object]


def task_step(task: Task, recipe: str, *, codec: str = "", steps: int = 1000) -> Step:
    """Return the step of `fewbits train`, with its parts marked.

    Args:
        task: model, batches and loss.
        recipe: a recipe or its text.
        codec: in what gradients travel between processes; "" where there is one.
        steps: for how many the learning rate is planned.
    """
    trainer = recipe_trainer(task, recipe, codec=codec, steps=steps)
    trainer.task = replace(
        task, draw_batch=marked("data", task.draw_batch), loss=marked("forward", task.loss)
    )
    optimizer = trainer.optimizer
    for name in ("clip_", "zero_grad"):
        if hasattr(optimizer, name):
            setattr(optimizer, name, marked("optimizer", getattr(optimizer, name)))
    if trainer.together is not None:
        together = trainer.together
        for name in ("after_backward", "after_step", "mean"):
            setattr(together, name, marked("communication", getattr(together, name)))
    return trainer.step


def user_step(name: str) -> Step:
    """Return a function of the user's that makes one step each time it is called.

    Args:
        name: ``MODULE:FUNCTION``; the module's code runs.

    Raises:
        ArgumentError: there is no such function, or it takes arguments.
    """
    return user_function(name, "makes one training step")
