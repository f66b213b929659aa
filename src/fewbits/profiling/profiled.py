"""One profile: plain steps by the clock, one pass that counts, and steps under the profiler."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from fewbits.errors import ArgumentError
from fewbits.profiling.advice import advise
from fewbits.profiling.attribution import Attribution, combined, flame
from fewbits.profiling.counting import Counter, uncompiled
from fewbits.profiling.limits import completed, measured_limits
from fewbits.profiling.operations import operations
from fewbits.profiling.recording import profiles, record
from fewbits.records import MachineLimits, StepProfile
from fewbits.tensor.inputs import is_count

_WARM_UP = 3


def profile_step(
    step: Callable[[], object],
    *,
    name: str = "step",
    recipe: str = "",
    steps: int = 10,
    processes: int = 1,
    limits: MachineLimits | None = None,
    trace: Path | None = None,
) -> StepProfile:
    """Profile a training step on the CPU.

    The step runs three times to warm up, once to be counted, twice so many times plain, by the clock, and so
    many and one under PyTorch's profiler; a process alone also tries one thread and one for each core, where
    torch has another number, each so many times and one. Medians count: of the plain steps, and of each part
    of the others. Each run is a real one: weights change.

    Args:
        step: is called without arguments; makes one step of training.
        name: of the task or function, for reports.
        recipe: likewise.
        steps: how many are timed, plain and under the profiler.
        processes: that train together and all call this.
        limits: of the machine; None: they are measured after the steps, and so are rates of products that
            the step needs and these lack.
        trace: where a Chrome trace is written; None: nowhere.

    Raises:
        ArgumentError: the step computes on another device than the CPU, a profiler is on, steps are no whole
            number from one up, or the folder of the trace does not exist.

    >>> import torch
    >>> x = torch.ones(1000)
    >>> found = profile_step(lambda: x.mul_(1.0), steps=1, limits=MachineLimits(1, 1e10, 1e10, {}, 1e-6))
    >>> found.operations[0].name in ("aten::mul_", "Python")
    True
    """
    if profiles():
        raise ArgumentError("a profiler is on, and two cannot be; switch it off, or call the step alone")
    if not is_count(steps):  # told before the first step, which changes weights
        raise ArgumentError(f"steps={steps!r}; expected a whole number, at least one")
    steps = int(steps)  # a record holds numbers of Python
    if trace is not None and not Path(trace).parent.is_dir():
        raise ArgumentError(f"cannot write {trace}: its folder does not exist; create it first")
    for _ in range(_WARM_UP):
        step()
    counter = Counter()
    with uncompiled(), counter:
        step()
    plain = _seconds(step, steps)
    recordings = record(step, steps, trace)
    plain += _seconds(step, steps)  # before and after: a machine may be busier for a while
    pieces, alike = combined([Attribution(r.step, counter.counts).pieces for r in recordings])
    dtypes = {c.dtype for counts in counter.counts.values() for c in counts if c.is_product and c.dtype}
    known = measured_limits(dtypes) if limits is None else completed(limits, dtypes)
    rows, seconds = operations(pieces, known), 1e-9 * sum(piece.nanoseconds for piece in pieces)
    threads = _other_threads(step, median(plain), steps) if processes == 1 else []
    return StepProfile(
        task=name,
        recipe=recipe,
        processes=processes,
        steps=steps,
        plain_seconds=median(plain),
        profiled_seconds=1e-9 * median(r.step.duration for r in recordings),
        seconds=seconds,
        operations=rows,
        flame=flame(pieces),
        limits=known,
        alike=alike,
        others_seconds=1e-9 * median(sum(span.duration for span in r.beside) for r in recordings),
        advice=advise(rows, seconds, known, threads),
    )


def _seconds(step: Callable[[], object], steps: int) -> list[float]:
    times = []
    for _ in range(steps):
        start = perf_counter()
        step()
        times.append(perf_counter() - start)
    return times


def _other_threads(step: Callable[[], object], seconds: float, steps: int) -> list[tuple[int, float]]:
    """Return the time of a step with the threads of now, with one and with one for each core."""
    now, found = torch.get_num_threads(), []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        for threads in dict.fromkeys((now, 1, cores)):
            if threads == now:
                found.append((threads, seconds))
                continue
            torch.set_num_threads(threads)
            step()
            found.append((threads, median(_seconds(step, steps))))
    finally:
        torch.set_num_threads(now)
    return found
