"""Does a filter of the samples, by how hard they are, help large batches as Gahlot et al. (2020) say?

Digits and mnist10k, where its files lie, 900 images of each to train on; SGD with momentum, polynomial
decay, gradients clipped to a norm of 1, without which some runs fail; as many steps for every way to filter.
Each epoch keeps three quarters: those with the largest EL2N scores, or losses, of the model as it is; or
others drawn at random each time, which is what a filter has to beat; or all; or those with the smallest
losses (`easiest`), which has to lose, or scores would make no difference here. Batches of 32, and of half of
these images, at the best of some rates for each way. The paper's scorer is not published: this is its idea
with scorers of others. A way is better than another where the 95 % interval of paired differences says so.

    python benchmarks/data_filter.py [--seeds 3] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import torch
from _alternating import table, write
from _training import arguments, image_sets, tried
from torch import Tensor
from torch.utils.data import BatchSampler

from fewbits.evidence import paired
from fewbits.train import FilteredSampler, el2n_scores, loss_scores, recipe_trainer, seeded
from fewbits.train.tasks.digits_model import DigitModel
from fewbits.train.tasks.digits_task import Digits, images_task
from fewbits.train.tasks.task import Hyperparameters, Task

KEEP = 0.75
IMAGES = 900  # to train on
CHANNELS = {"digits": 16, "mnist10k": 8}
EPOCHS = {32: 15, 450: 45}  # by samples in a batch
RECIPE = "fp32:optimizer=sgd,lr_schedule=polynomial"
RATES = {32: (0.05, 0.1), 450: (0.2, 0.4)}
WAYS = ("all", "random", "el2n", "loss", "easiest")
CLIPPED_TO = 1.0


def trained(task: Task, images: Digits, way: str, batch: int, lr: float, seed: int) -> float:
    """Return the accuracy in percent."""
    count = len(images.labels)
    steps = EPOCHS[batch] * count // batch
    hyper = replace(task.hyper, steps=steps, batch_size=batch, lr=lr, max_norm=CLIPPED_TO)
    random = torch.Generator().manual_seed(seed)

    def scores() -> Tensor:
        if way == "random":
            return torch.rand(count, generator=random)
        pieces = zip(images.images.split(500), images.labels.split(500), strict=True)
        found = (el2n_scores if way == "el2n" else loss_scores)(trainer.model, pieces)
        return -found if way == "easiest" else found

    sampler = FilteredSampler(count, scores, keep=1.0 if way == "all" else KEEP, warm_up=2)

    def endless() -> Iterator[list[int]]:
        while True:
            yield from BatchSampler(sampler, batch, drop_last=True)

    batches = endless()

    def draw(_: torch.Generator, __: int) -> tuple[Tensor, ...]:
        chosen = next(batches)
        return images.images[chosen], images.labels[chosen]

    with seeded(task, seed):
        trainer = recipe_trainer(replace(task, hyper=hyper, draw_batch=draw), RECIPE, seed=seed)
        for _ in trainer:
            pass
        return trainer.evaluate()


def rows_of(name: str, images: Digits, held_out: Digits, side: int, seeds: int) -> list[dict[str, Any]]:
    """Return a row for each size of a batch and way to filter, beside the filter at random."""
    images = Digits(images.images[:IMAGES], images.labels[:IMAGES])
    create = partial(DigitModel, CHANNELS[name], side)
    task = images_task(name, create, images, held_out, Hyperparameters(steps=1, batch_size=1, lr=1.0))
    rows = []
    for batch, rates in RATES.items():
        best: dict[str, dict[str, Any]] = {}
        for way in WAYS:
            lr, found = tried(partial(trained, task, images, way, batch), rates, seeds)
            best[way] = {"data": name, "batch": batch, "kept": way, "lr": lr, "values": found[lr]}
        for row in best.values():
            over = paired(row["values"], best["random"]["values"], task.resolution)
            row |= {"accuracy": fmean(row["values"]), "over_random": over.mean, "margin": over.margin}
            rows.append(row)
            print(f"{name}, {batch}, {row['kept']}: {row['accuracy']:.2f}", flush=True)
    return rows


def main() -> None:
    """Print the table and write the figures."""
    given = arguments(__doc__ or "")
    rows = [row for images in image_sets() for row in rows_of(*images, given.seeds)]
    keys = ("data", "batch", "kept", "lr", "accuracy", "over_random", "margin")
    head = ("data", "batch", "kept", "rate", "accuracy", "over random", "+-")
    table(head, [tuple(row[key] for key in keys) for row in rows])
    write(given.json, rows)


if __name__ == "__main__":
    main()
