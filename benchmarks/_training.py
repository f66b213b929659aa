"""What benchmarks share that train on images: their options, the data, and one run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

from fewbits.errors import DataError
from fewbits.train import Trainer, recipe_trainer, seeded
from fewbits.train.tasks.digits_task import Digits, train_and_held_out
from fewbits.train.tasks.mnist_task import SIDE, mnist_sets
from fewbits.train.tasks.task import Task

Images = tuple[str, Digits, Digits, int]  # name, to train on, held out, pixels of a side


def arguments(question: str) -> argparse.Namespace:
    """Return the number of seeds, and where to write the figures."""
    options = argparse.ArgumentParser(description=question.splitlines()[0])
    options.add_argument("--seeds", type=int, default=3, help="default 3")
    options.add_argument("--json", type=Path, help="write the figures here too")
    return options.parse_args()


def image_sets() -> Iterator[Images]:
    """Yield the digits and, where its files lie, mnist10k."""
    yield ("digits", *train_and_held_out(), 8)
    try:
        found = mnist_sets()
    except DataError as error:
        print(f"mnist10k left out: {error}")
        return
    yield ("mnist10k", *found, SIDE)


def trained(task: Task, recipe: str, seed: int) -> Trainer:
    """Train, and return the trainer when it is done; nothing is left over for the next seed."""
    with seeded(task, seed):
        trainer = recipe_trainer(task, recipe, seed=seed, observe_every=task.hyper.steps)
        for _ in trainer:
            pass
        return trainer


def accuracy(task: Task, recipe: str, seed: int) -> float:
    """Train, and return the accuracy in percent."""
    trainer = trained(task, recipe, seed)
    with seeded(task, seed):
        return trainer.evaluate()


def tried(
    train: Callable[[float, int], float], rates: Sequence[float], seeds: int
) -> tuple[float, dict[float, list[float]]]:
    """Return the rate with the highest mean accuracy, and the accuracies of each rate, by seed."""
    found = {lr: [train(lr, seed) for seed in range(seeds)] for lr in rates}
    return max(found, key=lambda rate: fmean(found[rate])), found
