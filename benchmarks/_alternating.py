"""Timing for the benchmarks: everything in one process, in turns, medians, the limit measured alongside."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any, TypeVar

import torch
from _machine import cpu, forced

import fewbits
from fewbits import kernels

Calls = dict[str, Callable[[], Any]]
Name = TypeVar("Name")

_AHEAD = 2_000_000  # cycles of a GPU, about a millisecond
_TO_SLEEP = 0.05  # seconds; OpenBLAS's threads wait for 2^26 cycles


def seconds(
    calls: Mapping[Name, Callable[[], Any]], rounds: int, clock: Callable[[], float] = perf_counter
) -> dict[Name, float]:
    """Return the median time of each call; every round times each once, every second one backwards.

    Where others share the machine, ``clock`` may be time.thread_time, for calls that one thread computes.
    """
    for call in calls.values():
        call()  # allocates, wakes the threads, fills the caches
    times: dict[Name, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        for name in list(calls)[:: -1 if turn % 2 else 1]:
            times[name].append(_once(calls[name], clock))
    return {name: median(taken) for name, taken in times.items()}


def beside(
    limit: Callable[[], Any], calls: Mapping[Name, Callable[[], Any]], rounds: int
) -> tuple[float, dict[Name, float]]:
    """Return the median time of `limit`, and of each call the median part of it that the call takes.

    Where others share the machine, the speed of memory changes from second to second: `limit` runs before
    and after every call, whose time is set beside the mean of these two.
    """
    for call in (limit, *calls.values()):
        call()
    limits, ratios = [_once(limit)], {name: list[float]() for name in calls}
    for turn in range(rounds):
        for name in list(calls)[:: -1 if turn % 2 else 1]:
            taken = _once(calls[name])
            limits.append(_once(limit))
            ratios[name].append(2 * taken / (limits[-2] + limits[-1]))
    return median(limits), {name: median(of) for name, of in ratios.items()}


def _once(call: Callable[[], Any], clock: Callable[[], float] = perf_counter) -> float:
    """Return the seconds of one call, after all threads got the time to fall asleep.

    Those of a library that still wait for its next piece of work would slow down another one.
    """
    if torch.cuda.is_initialized():
        return _on_gpu(call)
    sleep(_TO_SLEEP)
    start = clock()
    call()
    return clock() - start


def _on_gpu(call: Callable[[], Any]) -> float:
    """Return the seconds that a GPU takes for a call.

    It is kept busy before, so that what it computes is timed and not how fast the host asks for it, unless
    that takes longer.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(_AHEAD)
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def compiled_peer(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what torch.compile makes of rounding to a format by operations of torch."""
    torch._dynamo.reset()  # the graphs of other formats count as many of this one
    graph = torch.compile(lambda x: fewbits.fake_quantize(x, name, nonfinite="saturate"), fullgraph=True)

    def rounded(x: torch.Tensor) -> torch.Tensor:
        kernels.force_backend("portable")
        y = graph(x)
        kernels.force_backend(None)
        return y

    return rounded


def arguments(question: str, *, device: bool = False, rounds: int = 5, **sizes: int) -> argparse.Namespace:
    """Return the sizes, the number of rounds and where to write the figures; read from the command line.

    With ``device``, also the device that the benchmark runs on.
    """
    parser = argparse.ArgumentParser(description=question.splitlines()[0])
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    if device:
        parser.add_argument("--device", type=torch.device, default="cpu", help="default cpu; cuda for a GPU")
    parser.add_argument("--formats", default="", help="comma-separated; default: those that tell most")
    parser.add_argument(
        "--rounds", type=int, default=rounds, help=f"rounds of which the median counts (default {rounds})"
    )
    parser.add_argument("--json", type=Path, help="write the figures here too")
    return parser.parse_args()


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        **cpu(),
        **({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_initialized() else {}),
        "isa": kernels.active_isa(),
        "forced": forced(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *_said()]),
    }


def _said() -> list[str]:
    """Return the command line but for the file that the figures go to, which says nothing about them."""
    at = sys.argv.index("--json") if "--json" in sys.argv else len(sys.argv)
    return sys.argv[1:at] + sys.argv[at + 2 :]


def table(heads: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    """Print aligned columns; numbers with two digits, what is missing as a dash."""
    texts = [heads, *(tuple(_cell(value) for value in row) for row in rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(heads))]
    if torch.cuda.is_initialized():
        print(f"on {torch.cuda.get_device_name()}, by {kernels.active_backend('cuda')}; the host:")
    print(f"instructions: {kernels.active_isa()}{_told()}; {torch.get_num_threads()} threads")
    for row in texts:
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        print("  ".join(cells))


def _told() -> str:
    return "".join(f", {name}={value}" for name, value in forced().items() if name != "OMP_NUM_THREADS")


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def write(path: Path | None, rows: list[dict[str, Any]]) -> None:
    """Write the figures as JSON where a path was given."""
    if path:
        path.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2) + "\n")
