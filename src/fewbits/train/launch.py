"""Processes of one machine that train together, and those that torchrun started."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import distributed
from torch.multiprocessing.spawn import ProcessException, start_processes

from fewbits.errors import ArgumentError, FewbitsError

Job = Callable[[], None]


def has_torchrun() -> bool:
    """Return whether torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def count() -> int:
    """Return how many processes torchrun started."""
    return int(os.environ["WORLD_SIZE"])


@contextmanager
def joined() -> Iterator[None]:
    """Be one of the processes that torchrun started, while the context lasts."""
    distributed.init_process_group("gloo")
    try:
        yield
    finally:
        distributed.destroy_process_group()


def start(processes: int, job: Job) -> None:
    """Call a job, which can be pickled, in so many processes of this machine, and wait for them.

    They meet in a file and talk by the loopback interface. Each has its share of torch's threads.

    Raises:
        ArgumentError: one of them raised an error of this package; the message is that of the first.
    """
    threads = max(torch.get_num_threads() // processes, 1)
    with tempfile.TemporaryDirectory() as folder:
        try:
            start_processes(
                _be_one, args=(processes, threads, folder, job), nprocs=processes, start_method="spawn"
            )
        except ProcessException:
            said = sorted(Path(folder).glob("said-*"))
            if not said:
                raise
            raise ArgumentError(said[0].read_text(encoding="utf-8")) from None


def _be_one(rank: int, processes: int, threads: int, folder: str, job: Job) -> None:
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(threads)
    meeting = (Path(folder) / "meeting").as_uri()
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=processes)
    try:
        job()
    except FewbitsError as error:
        (Path(folder) / f"said-{rank}").write_text(str(error), encoding="utf-8")
        raise SystemExit(2) from None
    finally:
        distributed.destroy_process_group()
