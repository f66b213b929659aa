"""Complete runs: train, write checkpoints, resume a run that was killed, and evaluate the model."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median

from fewbits.errors import ArgumentError
from fewbits.optim.sharded import processes
from fewbits.recipes import recipe as read
from fewbits.recipes.rounding import joint_seed
from fewbits.records import TrainRun
from fewbits.train import checkpoint
from fewbits.train.by_recipe import recipe_trainer
from fewbits.train.held import held
from fewbits.train.log import Log, column, warnings
from fewbits.train.reproducible import seeded
from fewbits.train.settings import Settings
from fewbits.train.starting_weights import start_from
from fewbits.train.step import Step
from fewbits.train.tasks import task as read_task
from fewbits.train.together import rank
from fewbits.train.trainer import Trainer
from fewbits.typing import Progress

_LONGEST = 120  # characters of a folder's name before the seed
LAST = 50  # steps whose mean loss is reported
_LOSSES = 100  # mean losses in a record, at most


def run(
    settings: Settings,
    folder: Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    callback: Callable[[Step], object] | None = None,
    step: Callable[[Trainer], Step] | None = None,
    stop: Callable[[Trainer], bool] | None = None,
) -> TrainRun:
    """Train once, and evaluate.

    A run that was killed at any moment and is resumed ends with the bits of one that was not.

    Args:
        settings: everything that decides the result.
        folder: takes the checkpoint and the log; made where it is not there.
        resume: go on from the folder's checkpoint, if there is one.
        progress: called after each step: how many are done, of how many.
        callback: called with each step: its loss, learning rate and so on.
        step: takes a step of the trainer, for one that looks at what happens within it.
        stop: called with the trainer after each step; the run ends before its last step where it returns
            True, the same on all processes.

    Returns:
        Losses, metric, warnings, bytes and time.

    Raises:
        ArgumentError: unknown task, model or recipe, a checkpoint of other settings, weights to start from
            that do not fit the model, or another run that is writing to the folder.
        DataError: the task's data cannot be read, or the folder's checkpoint is broken.
    """
    chosen, task = read(settings.recipe), read_task(settings.task, settings.size, settings.model)
    task = replace(task, hyper=settings.apply(task.hyper))
    if settings.processes != processes():
        raise ArgumentError(
            f"settings of {settings.processes} processes, and there are {processes()}; start as many, by"
            " torchrun or with --processes"
        )
    own = folder if rank() == 0 else folder / f"rank{rank()}"  # what the others log
    # Each process rounds and drops at random on its own.
    seed = joint_seed(settings.seed, rank()) if rank() else settings.seed
    with seeded(task, seed):
        trainer = recipe_trainer(
            task,
            chosen,
            seed=settings.seed,
            include=settings.include,
            exclude=settings.exclude,
            observe_every=settings.observe_every,
            codec=settings.codec,
            local_steps=settings.local_steps,
            shard_states=settings.shard_states,
            begin=partial(start_from, path=Path(settings.start)) if settings.start else None,
        )
        path = checkpoint.newest(trainer, folder) if resume else None
        if path is not None:
            checkpoint.load(trainer, settings, path)
        own.mkdir(parents=True, exist_ok=True)  # what is wrong has been told, and leaves no empty folder
        with held(own), closing(Log(own, trainer.step_number)) as log:
            stopped = False
            while trainer.step_number < trainer.steps and not stopped:
                began = time.monotonic()
                done = trainer.step() if step is None else step(trainer)
                _write(log, trainer, done, time.monotonic() - began)
                if callback is not None:
                    callback(done)
                if progress is not None:
                    progress(f"{settings.recipe}, seed {settings.seed}", done.step, trainer.steps)
                stopped = stop is not None and stop(trainer)
                if done.step % settings.save_every == 0 or done.step == trainer.steps or stopped:
                    log.flush()
                    checkpoint.keep(trainer, settings, folder)
            value = trainer.evaluate()
            log.flush()
            return _record(trainer, settings, own, value)


def folder_name(settings: Settings) -> str:
    """Return a name for a run's folder: readable, and safe on every file system."""
    parts = (Path(settings.task).name, *([settings.model] if settings.model else []), settings.recipe)
    readable = "-".join(re.sub(r"[^A-Za-z0-9_.=-]+", "_", part) for part in parts)
    if len(readable) > _LONGEST:
        readable = f"{readable[:_LONGEST]}-{hashlib.sha256(settings.recipe.encode()).hexdigest()[:8]}"
    return f"{readable}-seed{settings.seed}"


def _write(log: Log, trainer: Trainer, step: Step, seconds: float) -> None:
    log.step(asdict(step) | {"seconds": seconds})
    operands, messages = trainer.observer.drained()
    log.seen(operands, step.step)
    for text in messages:
        log.warning(text, step.step)


def _record(trainer: Trainer, settings: Settings, folder: Path, value: float) -> TrainRun:
    losses, task = column(folder, "loss"), trainer.task
    sent, wide = (0, 0) if trainer.together is None else trainer.together.bytes()
    every = max(-(-len(losses) // _LOSSES), 1)
    return TrainRun(
        task=task.name,
        metric=task.metric,
        lower_is_better=task.lower_is_better,
        recipe=settings.recipe,
        seed=settings.seed,
        steps=trainer.step_number,
        value=value,
        final_loss=fmean(losses[-LAST:]),
        seconds_per_step=median(column(folder, "seconds")),
        bytes_per_value=trainer.bytes_per_value,
        warnings=tuple(warnings(folder)),
        resolution=task.resolution,
        losses=tuple(fmean(losses[i : i + every]) for i in range(0, len(losses), every)),
        loss_every=every,
        processes=settings.processes,
        codec=settings.codec,
        bytes_sent=sent / trainer.step_number,
        bytes_wide=wide / trainer.step_number,
    )
