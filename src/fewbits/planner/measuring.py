"""This computer as a machine: rates of products and vectors, and the link between two processes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, distributed

from fewbits.records import Machine, MachineLink
from fewbits.train import launch

_SIDE = 1024  # of the products
_VALUES = 1 << 23  # of the vectors and of what is sent
_REPEATS = 5
_WIDTHS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def measured_machine() -> Machine:
    """Measure this computer, with as many threads as torch has; a device is one process on it.

    Takes seconds. The link is that of an all-reduce of two processes by the loopback interface.
    """
    flops = {name: _product_rate(dtype) for name, dtype in _WIDTHS.items()}
    x = torch.ones(_VALUES)
    vector = _VALUES / _seconds(lambda: x.add_(1.0))
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "seconds"
        launch.start(2, _Exchange(str(told)))
        long, short = map(float, told.read_text("utf-8").split())
    gigabits = 8e-9 * 4 * _VALUES / long  # of two processes each sends as many bytes as there are
    return Machine("this computer", flops, (MachineLink(gigabits, 1e6 * short / 2),), memory, 1, vector)


class _Exchange:
    """What both processes do: reduce many values, and one."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self) -> None:
        many, one = torch.ones(_VALUES), torch.ones(1)
        seconds = [_seconds(partial(distributed.all_reduce, x)) for x in (many, one)]
        if distributed.get_rank() == 0:
            Path(self.path).write_text(" ".join(map(repr, seconds)), "utf-8")


def _product_rate(dtype: torch.dtype) -> float:
    a = torch.ones(_SIDE, _SIDE, dtype=dtype)

    def multiply() -> Tensor:
        return a @ a

    return 2 * _SIDE**3 / _seconds(multiply)


def _seconds(job: Callable[[], object]) -> float:
    """Return the least time of several calls, after one that does not count."""
    job()
    times = []
    for _ in range(_REPEATS):
        start = perf_counter()
        job()
        times.append(perf_counter() - start)
    return min(times)
