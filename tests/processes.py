"""Tests that start a few processes of one group on this machine, and end them whatever happens."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from tests.copies import start_copies


@contextmanager
def joined(rank: int, folder: str, processes: int, patience: float) -> Iterator[None]:
    """Be one of the processes, which meet in the folder; one thread each."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=processes,
        timeout=timedelta(seconds=patience / 2),
    )
    try:
        yield
    finally:
        distributed.destroy_process_group()


def run(work: Callable[[int, str], Any], folder: Path, processes: int, patience: float) -> None:
    """Call ``work(rank, folder)`` in as many processes, and wait no longer than ``patience`` seconds."""
    started = start_copies(work, (str(folder),), processes, join=False)
    try:
        ends = time.monotonic() + patience
        while not started.join(timeout=1):
            assert time.monotonic() < ends, "the processes do not end"
    finally:
        for process in started.processes:
            if process.is_alive():
                process.kill()
            process.join()
