"""What codecs save and cost when several processes train: bytes, errors, losses, and time as predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from fewbits.compare.codec_runs import train_together
from fewbits.compare.whole_numbers import check_number, check_whole
from fewbits.distributed.cost import Link, Network, announced, by_owners, counted, step_seconds
from fewbits.distributed.rates import measured_rates
from fewbits.distributed.wire import nbytes
from fewbits.errors import ArgumentError
from fewbits.recipes import Codec
from fewbits.records import CodecComparison, CodecRates, CodecScore, StepTime, TrainRun
from fewbits.train import Settings, Task, recipe_trainer, seeded
from fewbits.train.reproducible import one_thread
from fewbits.train.tasks import task as read_task
from fewbits.train.tasks.user_model import is_user_model
from fewbits.typing import Progress

CODECS = (
    "fp32",
    "bf16",
    "mxfp8_e4m3",
    "int8_256:feedback",
    "fp8_e5m2:aps",
    "mxfp4",
    "topk:density=0.01,feedback",
)
_STEPS = 8  # whose fastest is the time of a step without exchange


def compare_codecs(
    tasks: Sequence[str] = ("bytes",),
    codecs: Sequence[str | Codec] | None = None,
    *,
    processes: int = 4,
    size: str = "small",
    seeds: int = 3,
    steps: int = 0,
    links: Sequence[float] = (1.0, 10.0, 100.0),
    latency_us: float = 20.0,
    progress: Progress | None = None,
) -> tuple[CodecComparison, ...]:
    """Train each task's model in several processes of this machine with each codec, beside FP32 on the wire.

    All runs of a task take the same steps, weights and samples for each seed; layers compute in FP32. A
    program that calls this needs ``if __name__ == "__main__":`` around what it does, as the processes import
    it.

    The time of a step is predicted, not measured: compute of one process alone, the rates at which one thread
    of this machine rounds, adds and unpacks, and the bytes of a reduction over links of some speed, one for
    each process (:mod:`fewbits.distributed.cost`).

    Args:
        tasks: as :func:`compare_models` takes them.
        codecs: codecs or their texts; None: :data:`CODECS`. FP32 is always among them.
        processes: two or more, that share each batch.
        size: of the models of the tasks.
        seeds: how many models to train with each codec; seeds are 0, 1, ...
        steps: of each training; 0: as many as the task says.
        links: speeds to predict for, in 10^9 bits per second.
        latency_us: of a message, in microseconds.
        progress: called as work goes on.

    Returns:
        One record for each task, with a score for each codec, FP32's first.

    Raises:
        ArgumentError: an unknown task, no codec, a hook of torch's, one process, a batch that the processes
            do not divide, or a number out of its range.
        FormatError: no such format.
        DataError: data cannot be read or is too short.
    """
    codecs = CODECS if codecs is None else codecs
    chosen = tuple(dict.fromkeys(str(counted(codec)) for codec in ("fp32", *codecs)))
    for given, name in ((tasks, "task"), (codecs, "codecs"), (links, "links")):
        if not given:
            raise ArgumentError(f"`{name}` is empty; give at least one, with commas between")
    for name, number, least in (("processes", processes, 1), ("seeds", seeds, 1), ("steps", steps, 0)):
        check_whole(name, number, least=least)
    if processes < 2:
        raise ArgumentError(
            f"processes={str(processes)!r}, and a codec is of what travels between them; take 2 or more"
        )
    for name, speed in (("latency_us", latency_us), *(("links", gigabits) for gigabits in links)):
        check_number(name, speed)
    networks = [Network(processes, Link(gigabits, latency_us)) for gigabits in links]
    advance = progress or (lambda what, done, total: None)
    return tuple(
        _compared(
            Settings(name, "fp32", size, steps, processes=processes, codec="fp32", save_every=1 << 30),
            chosen,
            seeds,
            networks,
            advance,
        )
        for name in dict.fromkeys(tasks)
    )


def _compared(
    common: Settings, codecs: tuple[str, ...], seeds: int, networks: Sequence[Network], progress: Progress
) -> CodecComparison:
    task = read_task(common.task, common.size)
    if is_user_model(common.task) and task.hyper.batch_size == 1:  # the user's batches are not cut
        common = replace(common, batch_size=common.processes)
    task = replace(task, hyper=common.apply(task.hyper))
    if task.hyper.batch_size % common.processes:
        raise ArgumentError(
            f"{task.hyper.batch_size} samples in a step of {common.task} for {common.processes} processes;"
            " take a number of processes that divides them"
        )
    lengths = [p.numel() for p in task.create(0).parameters() if p.requires_grad]
    n, layers = sum(lengths), len(lengths)
    rates = [measured_rates(codec, n) for codec in codecs]
    compute = _compute_seconds(task, common.processes)
    found = train_together(common, codecs, seeds, progress)

    def score(text: str, rate: CodecRates) -> CodecScore:
        codec, runs, baseline = counted(text), found.runs[text], found.runs[codecs[0]]
        # What average_gradients tells besides: which parameters have a gradient, a byte each.
        small = [*announced(codec, layers), layers]
        seconds = (step_seconds(compute, by_owners(codec, n, net, rate, small=small)) for net in networks)
        return CodecScore(
            codec=text,
            bits_per_value=8 * nbytes(codec, n) / n if codec.density else _bits(codec),
            bytes_sent=runs[0].bytes_sent,
            bytes_wide=runs[0].bytes_wide,
            relative_error=found.errors[text],
            values=_values(runs),
            baseline=_values(baseline),
            train_losses=tuple(run.final_loss for run in runs),
            predicted=tuple(
                StepTime(net.link.gigabits, time) for net, time in zip(networks, seconds, strict=True)
            ),
            resolution=task.resolution,
        )

    return CodecComparison(
        # By which the command of a report finds it, whatever a task calls itself.
        task=common.task if is_user_model(common.task) or Path(common.task).exists() else task.name,
        metric=task.metric,
        lower_is_better=task.lower_is_better,
        steps=task.hyper.steps,
        seeds=tuple(range(seeds)),
        processes=common.processes,
        parameters=n,
        compute_seconds=compute,
        latency_us=networks[0].link.latency_us,
        scores=tuple(map(score, codecs, rates)),
        rates=tuple(rates),
    )


def _bits(codec: Codec) -> float:
    return 32.0 if codec.format is None else codec.format.bits_per_value


def _values(runs: Sequence[TrainRun]) -> tuple[float, ...]:
    return tuple(run.value for run in runs)


def _compute_seconds(task: Task, processes: int) -> float:
    """Return the time of a step of one process's part of a batch, on one thread, alone."""
    part = replace(task.hyper, batch_size=task.hyper.batch_size // processes)
    with seeded(task, 0), one_thread():
        trainer = recipe_trainer(replace(task, hyper=part), "fp32", observe_every=1 << 30)
        trainer.step()  # allocates
        times = []
        for _ in range(_STEPS):
            start = perf_counter()
            trainer.step()
            times.append(perf_counter() - start)
    return min(times)
