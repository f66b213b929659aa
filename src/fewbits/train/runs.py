"""Whole runs: train, keep checkpoints, go on where one was killed, and score what came out."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import fmean, median

import torch

from fewbits.recipes import recipe as read
from fewbits.records import TrainRun
from fewbits.train import checkpoint
from fewbits.train.log import Log, column, warnings
from fewbits.train.settings import Settings
from fewbits.train.tasks import Task, trained_task
from fewbits.train.tasks.training import one_thread
from fewbits.train.trainer import Trainer

CHECKPOINT = "checkpoint.safetensors"
_LONGEST = 120  # characters of a folder's name before the seed
LAST = 50  # steps whose mean loss is reported
_LOSSES = 100  # means that a record has of the losses of all steps, at most

Progress = Callable[[int, int, float], None]  # steps done, steps in all, loss of the last one


def run(
    settings: Settings, folder: Path, *, resume: bool = False, progress: Progress | None = None
) -> TrainRun:
    """Train once, and evaluate.

    A run that was killed at any moment and is resumed ends with the bits of one that was not.

    Args:
        settings: everything that decides the result.
        folder: takes the checkpoint and the log; made where it is not there.
        resume: go on from the folder's checkpoint, if there is one.
        progress: called after each step.

    Returns:
        Losses, metric, warnings, bytes and time.

    Raises:
        ArgumentError: unknown task, model or recipe, or a checkpoint of other settings.
        DataError: the task's data cannot be read, or the folder's checkpoint is broken.
    """
    chosen = read(settings.recipe)
    found = trained_task(settings.task, settings.model)
    steps = settings.steps or found.hyper.steps
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        if found.small:
            stack.enter_context(one_thread())
        torch.manual_seed(settings.seed)
        trainer = Trainer(found, chosen, seed=settings.seed, steps=steps, watch_every=settings.watch_every)
        path = folder / CHECKPOINT
        if resume and path.exists():
            checkpoint.load(trainer, settings, path)
        log = stack.enter_context(closing(Log(folder, trainer.step_number)))
        while trainer.step_number < steps:
            began = time.monotonic()
            record = trainer.step()
            _write(log, trainer, record | {"seconds": time.monotonic() - began})
            if progress is not None:
                progress(trainer.step_number, steps, record["loss"])
            if trainer.step_number % settings.save_every == 0 or trainer.step_number == steps:
                log.flush()
                checkpoint.save(trainer, settings, path)
        value = trainer.evaluate()
        log.flush()
        return _scored(found, trainer, settings, folder, value)


def folder_name(settings: Settings) -> str:
    """Return a name for a run's folder: readable, and safe on every file system."""
    parts = (Path(settings.task).name, settings.recipe)
    readable = "-".join(re.sub(r"[^A-Za-z0-9_.=-]+", "_", part) for part in parts)
    if len(readable) > _LONGEST:
        readable = f"{readable[:_LONGEST]}-{hashlib.sha256(settings.recipe.encode()).hexdigest()[:8]}"
    return f"{readable}-seed{settings.seed}"


def _write(log: Log, trainer: Trainer, record: dict[str, object]) -> None:
    log.step(record)
    seen, said = trainer.watch.drained()
    log.seen(seen, trainer.step_number)
    for text in said:
        log.warning(text, trainer.step_number)


def _scored(found: Task, trainer: Trainer, settings: Settings, folder: Path, value: float) -> TrainRun:
    losses = column(folder, "loss")
    every = max(-(-len(losses) // _LOSSES), 1)
    return TrainRun(
        task=found.name,
        metric=found.metric,
        lower_is_better=found.lower_is_better,
        recipe=settings.recipe,
        seed=settings.seed,
        steps=trainer.steps,
        value=value,
        final_loss=fmean(losses[-LAST:]),
        seconds_per_step=median(column(folder, "seconds")),
        bytes_per_value=trainer.bytes_per_value,
        warnings=tuple(warnings(folder)),
        resolution=found.resolution,
        losses=tuple(fmean(losses[i : i + every]) for i in range(0, len(losses), every)),
        loss_every=every,
    )
