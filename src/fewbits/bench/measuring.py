"""Run a benchmark: each recipe from each seed until the model is good enough, and the result by the rules."""

from __future__ import annotations

import gc
import importlib.util
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import distributed

from fewbits.bench.benchmarks import Benchmark
from fewbits.bench.disclosed import check_claim, merged, never_ran
from fewbits.bench.energy import energy_proxy
from fewbits.bench.journal import NAME, Journal, broken
from fewbits.bench.rules import check_seeds, converges_too_fast, no_reference, reference_point, score
from fewbits.distributed import sent_bytes
from fewbits.errors import ArgumentError, DataError
from fewbits.evidence import Evidence, paired
from fewbits.optim.sharded import processes as started
from fewbits.recipes import codec as read_codec
from fewbits.recipes import recipe as read
from fewbits.records import BenchmarkReport, BenchmarkRun, RecipeResult
from fewbits.train import PrecisionObserver, Settings, Step, Task, Trainer, run
from fewbits.train.log import warnings
from fewbits.train.runs import folder_name
from fewbits.train.tasks import task as read_task
from fewbits.train.together import rank

CLEARED = ("objects of earlier runs", "data sets in the memory of the process: each run reads its own")
KEPT = (
    "the operating system's cache of files, which root alone can clear",
    "PyTorch's threads and the compiled kernels, which are no data",
    "the module of a benchmark or task of one's own and its globals, made before the clock runs",
)
# What training imports on its way, and the package that brings it: loading a library is no part of training,
# and would burden the first run alone.
_LIBRARIES = {
    "sklearn.datasets": "sklearn",
    "torch._dynamo": "torch",
    "torch.utils.tensorboard": "tensorboard",
}


class ShowProgress(Protocol):
    """Shows how far a run is."""

    def __call__(self, what: str, done: float, total: float, note: str = "") -> None:
        """Show that ``done`` of ``total`` of ``what`` is done, with a short note beside it."""


def run_benchmark(
    benchmark: Benchmark,
    recipes: Sequence[str],
    folder: Path,
    *,
    seeds: Sequence[int] | None = None,
    codec: str = "",
    resume: bool = False,
    progress: ShowProgress | None = None,
) -> BenchmarkReport | None:
    """Train by each recipe from each seed until the target is reached, and return times to quality.

    Runs of the recipes alternate, so that what else the machine does meets all of them. In one of several
    processes of :mod:`torch.distributed`, the runs are of all of them together; the clock is the first one's.

    Args:
        benchmark: what is trained, and how good it has to be.
        recipes: their texts; with ``fp32`` among them, the others are compared with it.
        folder: takes a folder for each run, with its journal and checkpoint.
        seeds: one for each run; default: 0, 1, ... as many as a result takes.
        codec: in which gradients travel between processes.
        resume: go on with the runs in the folder. The time that a kill lost counts.
        progress: called after each step of each run.

    Returns:
        All runs and the results; None in all processes but the first.

    Raises:
        ArgumentError: repeated seeds, too few runs, recipes that claim what did not run, or a folder that
            holds other runs.
        DataError: the task's data cannot be read, or a journal or checkpoint is broken.
    """
    seeds = tuple(range(benchmark.runs)) if seeds is None else tuple(seeds)
    check_seeds(seeds, benchmark.seeds)
    if len(seeds) < benchmark.runs:
        raise ArgumentError(
            f"{len(seeds)} runs where a result of {benchmark.name} takes {benchmark.runs}; make them all"
        )
    for library, package in _LIBRARIES.items():
        if importlib.util.find_spec(package) is not None:
            importlib.import_module(library)
    runs: dict[str, list[BenchmarkRun]] = {str(name): [] for name in recipes}
    for seed in seeds:
        for name, made in runs.items():
            settings = benchmark.settings(name, seed, started(), codec)
            one = _run(benchmark, settings, folder / folder_name(settings), resume=resume, progress=progress)
            made.extend([one] if one is not None else [])
    if rank():
        return None
    task = _task(benchmark)
    for name, made in runs.items():
        for one in made:
            settings = benchmark.settings(name, one.seed, started(), codec)
            _check_reached(one, benchmark, task, folder / folder_name(settings) / NAME)
    sent = _bits_sent(task, codec)
    results = [_result(benchmark, task, name, made, runs.get("fp32"), sent) for name, made in runs.items()]
    return BenchmarkReport(
        benchmark.name,
        benchmark.task,
        task.metric,
        task.lower_is_better,
        benchmark.target,
        benchmark.evaluate_every,
        benchmark.steps,
        benchmark.batch_size,
        benchmark.lr,
        benchmark.train_samples,
        benchmark.eval_samples,
        benchmark.runs,
        started(),
        codec,
        CLEARED,
        KEPT,
        tuple(results),
    )


def _run(
    benchmark: Benchmark, settings: Settings, folder: Path, *, resume: bool, progress: ShowProgress | None
) -> BenchmarkRun | None:
    """Make one run, or read what became of it; None in all processes but the first."""
    gc.collect()  # the data sets of earlier runs are gone
    decides = {"benchmark": asdict(benchmark), **asdict(settings)}
    with closing(Journal(None if rank() else folder / NAME, decides, resume=resume)) as journal:
        if not _agreed(journal.stopped):
            judge = _Judge(benchmark, settings, journal, progress)
            journal.start()
            run(settings, folder, resume=resume, callback=judge.show, step=judge.step, stop=judge.stop)
        if rank():
            return None
        if not journal.stopped:
            raise DataError(
                f"the checkpoint in {folder} is of a run at its end, and its journal does not know of"
                " that end: its time is lost; make the run again, in another --out"
            )
        last, ran = journal.evaluations[-1], merged(journal.precision)
        told = never_ran(read(settings.recipe), ran)
        return BenchmarkRun(
            settings.recipe,
            settings.seed,
            journal.reached,
            last.seconds,
            last.step,
            tuple(journal.evaluations),
            ran,
            journal.resumed,
            journal.started_ms,
            (*warnings(folder), *([told] if told else [])),
        )


def _check_reached(run: BenchmarkRun, benchmark: Benchmark, task: Task, path: Path) -> None:
    """Raise DataError unless a run ended where its evaluations say: at the first that is good enough."""
    good = [
        is_reached(e.value, benchmark.target, lower_is_better=task.lower_is_better) for e in run.evaluations
    ]
    if any(good[:-1]) or good[-1] != run.reached:
        raise broken(path)


class _Judge:
    """Keeps the time of one run, sees in which formats it computes, and ends it at the target."""

    def __init__(
        self, benchmark: Benchmark, settings: Settings, journal: Journal, progress: ShowProgress | None
    ) -> None:
        self.benchmark, self.settings, self.journal = benchmark, settings, journal
        self.recipe, self.progress = read(settings.recipe), progress
        self.has_begun, self.is_due = False, True
        self.said = ""

    def step(self, trainer: Trainer) -> Step:
        """Take a step; the first one, one after each evaluation, and the last under an observer."""
        if not self.has_begun:
            self.has_begun = True
            self.journal.back_to(trainer.step_number)
        if self.is_due or trainer.step_number + 1 == trainer.steps:
            self.is_due = False
            observer = PrecisionObserver(trainer.model)
            with observer:
                done = trainer.step()
            ran = observer.found(None if trainer.together is None else trainer.together.traffic.narrowest)
            check_claim(self.recipe, ran)
            self.journal.saw(ran)
        else:
            done = trainer.step()
        self.journal.step(done.step, sync=done.step % self.settings.save_every == 0)
        return done

    def stop(self, trainer: Trainer) -> bool:
        """Return whether the run is at its end: evaluate where it is time."""
        step, last = trainer.step_number, trainer.step_number == trainer.steps
        if step % self.benchmark.evaluate_every and not last:
            return False
        began, value = self.journal.now(), trainer.evaluate()
        if trainer.together is not None:
            value = trainer.together.mean(value)  # one decision of all
        self.journal.evaluated(step, began, value)
        self.said = f"{trainer.task.metric} {value:.4g}, target {self.benchmark.target:g}"
        self.is_due = True
        reached = is_reached(value, self.benchmark.target, lower_is_better=trainer.task.lower_is_better)
        if reached or last:
            self.journal.stop(reached=reached)
        return reached

    def show(self, step: Step) -> None:
        """Show how far the run is."""
        if self.progress is not None:
            name = f"{self.settings.recipe[:24]}, seed {self.settings.seed}"
            self.progress(name, step.step, self.benchmark.steps, self.said)


def is_reached(value: float, target: float, *, lower_is_better: bool) -> bool:
    """Return whether a model is good enough; one that broke is not.

    >>> is_reached(95.0, 95.0, lower_is_better=False), is_reached(float("nan"), 1.5, lower_is_better=True)
    (True, False)
    """
    return value <= target if lower_is_better else value >= target


def _agreed(stopped: bool) -> bool:
    """Return what the first process says, which has the journal."""
    if started() == 1:
        return stopped
    told = torch.tensor([int(stopped)])
    distributed.broadcast(told, 0)
    return bool(told)


def _task(benchmark: Benchmark) -> Task:
    task = read_task(benchmark.task, benchmark.size)
    return replace(task, hyper=replace(task.hyper, batch_size=benchmark.batch_size))


def _result(
    benchmark: Benchmark,
    task: Task,
    recipe: str,
    runs: Sequence[BenchmarkRun],
    baseline: Sequence[BenchmarkRun] | None,
    bits_sent: float | None,
) -> RecipeResult:
    """Return what the rules make of the runs of a recipe."""
    samples = [benchmark.batch_size * run.steps_to_target for run in runs]
    seconds, too_fast, untested = score([r.seconds_to_target for r in runs], benchmark.runs), None, ""
    if recipe != "fp32":
        reference = [benchmark.batch_size * run.steps_to_target for run in baseline or ()]
        untested = no_reference(reference, benchmark.runs)
        if not untested:
            too_fast = converges_too_fast(samples, reference_point(benchmark.batch_size, reference))
    base = baseline or ()
    valid = math.isfinite(seconds) and not too_fast
    compared = valid and base and math.isfinite(score([r.seconds_to_target for r in base], benchmark.runs))
    return RecipeResult(
        recipe,
        tuple(runs),
        seconds,
        score(samples, benchmark.runs),
        _log_ratio(runs, base) if compared else None,
        energy_proxy(task, read(recipe), bits_sent=bits_sent),
        too_fast,
        untested,
    )


def _bits_sent(task: Task, codec: str) -> float | None:
    """Return the bits that a process sends in a step; None where torch's own hook sends them."""
    if started() == 1:
        return 0.0
    if read_codec(codec).hook:
        return None
    values = sum(p.numel() for p in task.create(0).parameters())
    return 8.0 * sent_bytes(codec, values, started())


def _log_ratio(runs: Sequence[BenchmarkRun], baseline: Sequence[BenchmarkRun]) -> Evidence | None:
    """Return the logarithm of seconds over those of FP32, of seeds whose runs both reached the target."""
    base = {run.seed: run.seconds for run in baseline if run.reached}
    both = [run for run in runs if run.reached and run.seed in base]
    if not both:
        return None
    return paired([math.log(run.seconds) for run in both], [math.log(base[run.seed]) for run in both])
