"""Processes that train one model with each codec, and reduce its gradients by each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread

import torch
from torch import distributed, multiprocessing

from fewbits.distributed import CodecState, all_reduce
from fewbits.records import TrainRun
from fewbits.train import Settings, launch, recipe_trainer, run, seeded
from fewbits.train import checkpoint as checkpoints
from fewbits.train.tasks import task as read_task
from fewbits.train.together import rank
from fewbits.typing import Progress


@dataclass(frozen=True)
class Trained:
    """What the processes found out."""

    runs: dict[str, tuple[TrainRun, ...]]  # by codec, one per seed
    errors: dict[str, float]  # of one mean of gradients, by codec


def train_together(common: Settings, codecs: tuple[str, ...], seeds: int, progress: Progress) -> Trained:
    """Train with each codec and seed in processes of this machine.

    Args:
        common: task, recipe, steps and number of processes.
        codecs: texts, FP32's first: the gradients that are reduced are those of the model that it trained.
        seeds: of the initial weights: 0, 1, ...
        progress: called as work goes on.

    Raises:
        ArgumentError: a process raised an error of this package; the message is its own.
    """
    from tempfile import TemporaryDirectory

    heard: list[Trained] = []
    ours, theirs = multiprocessing.Pipe(duplex=False)

    def listen() -> None:
        while (said := ours.recv()) is not None:
            if isinstance(said, Trained):
                heard.append(said)
            else:
                progress(*said)

    listener = Thread(target=listen, daemon=True)
    listener.start()
    try:
        with TemporaryDirectory() as folder:
            launch.start(common.processes, _Job(common, codecs, seeds, folder, theirs))
    finally:
        theirs.send(None)
        listener.join()
    return heard[0]


@dataclass(frozen=True)
class _Job:
    """What each process does."""

    common: Settings
    codecs: tuple[str, ...]
    seeds: int
    folder: str
    told: Connection  # to the process that waits; the first one speaks

    def __call__(self) -> None:
        runs = {codec: tuple(self._run(codec, seed) for seed in range(self.seeds)) for codec in self.codecs}
        found = Trained(runs, self._errors())
        if rank() == 0:
            self.told.send(found)

    def _settings(self, codec: str, seed: int) -> Settings:
        return replace(self.common, codec=codec, seed=seed)

    def _place(self, codec: str, seed: int) -> Path:
        return Path(self.folder) / f"{self.codecs.index(codec)}-{seed}"

    def _run(self, codec: str, seed: int) -> TrainRun:
        before = self.codecs.index(codec) * self.seeds + seed

        def advance(what: str, done: float, total: float) -> None:
            self._tell(before + done / total)

        return run(self._settings(codec, seed), self._place(codec, seed), progress=advance)

    def _tell(self, done: float) -> None:
        if rank() == 0:
            what = f"{self.common.task}: {self.common.processes} processes"
            self.told.send((what, done, len(self.codecs) * self.seeds))

    def _errors(self) -> dict[str, float]:
        mine = _gradients(self._settings(self.codecs[0], 0), self._place(self.codecs[0], 0))
        exact = torch.cat([x.double().reshape(-1) for x in mine])
        distributed.all_reduce(exact)
        exact /= distributed.get_world_size()

        def error(codec: str) -> float:
            means = all_reduce(mine, codec, op="mean", state=CodecState(codec))
            mean = torch.cat([x.double().reshape(-1) for x in means])
            return float((mean - exact).norm() / exact.norm())

        return {codec: error(codec) for codec in self.codecs}


def _gradients(settings: Settings, folder: Path) -> list[torch.Tensor]:
    """Return the gradients of this process's samples, of a model that a run has trained."""
    task = read_task(settings.task, settings.size)
    task = replace(task, hyper=settings.apply(task.hyper))
    with seeded(task, settings.seed):
        trainer = recipe_trainer(task, settings.recipe, seed=settings.seed, codec=settings.codec)
        path = checkpoints.newest(trainer, folder)
        assert path is not None
        assert trainer.together is not None
        checkpoints.load(trainer, settings, path)
        batch = trainer.together.part(task.draw_batch(trainer.batches, task.hyper.batch_size))
        trainer.optimizer.zero_grad()
        task.loss(trainer.model, batch).backward()
        return [p.grad for p in trainer.model.parameters() if p.grad is not None]
