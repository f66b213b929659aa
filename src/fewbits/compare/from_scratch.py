"""Train a built-in model in each format from scratch, beside the same training in FP32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fewbits.errors import DataError
from fewbits.formats import Format, parse
from fewbits.recipes import uniform_recipe
from fewbits.train import Task, recipe_trainer, seeded
from fewbits.typing import Progress


@dataclass(frozen=True)
class Trained:
    """The metric of models trained in one format and in FP32, one per seed; () if none were."""

    values: tuple[float, ...] = ()
    baseline: tuple[float, ...] = ()


def from_scratch(task: Task, formats: Sequence[Format], seeds: int, progress: Progress) -> list[Trained]:
    """Train the task's model in each format with ``seeds`` seeds, and evaluate it without any cast.

    FP32 is always trained too: with the same loop, initial weights and batches, so that differences are due
    to the format.

    Args:
        task: what to train; its hyperparameters hold for every format.
        formats: each is applied through :func:`fewbits.recipes.uniform_recipe`.
        seeds: of the initial weights: 0, 1, ...
        progress: called as work goes on.

    Returns:
        One result for each format, in the order given. The metric is NaN if training diverged.
    """
    wide = parse("fp32")
    values: dict[Format, list[float]] = {fmt: [] for fmt in (wide, *formats)}
    runs = [(fmt, seed) for seed in range(seeds) for fmt in values]
    what = f"{task.name}: training in {len(values)} formats"
    for done, (fmt, seed) in enumerate(runs):

        def advance(part: float, done: int = done) -> None:
            progress(what, done + part, len(runs))

        values[fmt].append(_train(task, fmt, seed, advance))
        advance(1)
    return [Trained(tuple(values[fmt]), tuple(values[wide])) for fmt in formats]


def _train(task: Task, format: Format, seed: int, progress: Callable[[float], None]) -> float:
    steps = task.hyper.steps
    with seeded(task, seed):
        trainer = recipe_trainer(task, uniform_recipe(format), seed=seed, observe_every=steps)
        try:
            for step in trainer:
                if not step.is_finite:
                    return math.nan
                progress(step.step / steps)
        except DataError:  # NaN in a format without NaN
            return math.nan
        return task.evaluate(trainer.plain_model())
