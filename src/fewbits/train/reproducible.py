"""The threads and the random numbers that training uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from fewbits.train.tasks.task import Task


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch on one thread: for small models a second one costs minutes on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def seeded(task: Task, seed: int) -> Iterator[None]:
    """Give training its own random numbers, and one thread where the task asks for it.

    Torch's generator is left as it was. Equal seeds give equal bits on one machine.

    Args:
        task: what is trained.
        seed: of torch's generator, from which stochastic rounding draws.
    """
    with torch.random.fork_rng(devices=[]), one_thread() if task.single_thread else nullcontext():
        torch.manual_seed(seed)
        yield
