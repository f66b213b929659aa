"""Processes of one machine that train together, and those that torchrun started."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import torch
from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.multiprocessing.spawn import ProcessException, start_processes

from fewbits.errors import ArgumentError, FewbitsError

Job = Callable[[], None]


def has_torchrun() -> bool:
    """Return whether torchrun started this process as one of several."""
    return "RANK" in os.environ and count() > 1


def count() -> int:
    """Return how many processes torchrun started; 1 where it did not.

    Raises:
        ArgumentError: its variable has no number.
    """
    text = os.environ.get("WORLD_SIZE", "1")
    if not re.fullmatch("[0-9]{1,9}", text):
        raise ArgumentError(
            f"the environment variable WORLD_SIZE is {text!r:.60}, beside RANK; expected how many processes"
            " torchrun started: start by torchrun, or unset both"
        )
    return int(text)


def count_for(processes: int) -> int:
    """Return how many processes there will be: those that torchrun started, or as many as were asked for.

    Raises:
        ArgumentError: both were asked for, and differ, or torchrun's variable has no number.
    """
    started = count() if has_torchrun() else processes
    if started != processes and processes > 1:
        raise ArgumentError(
            f"--processes {processes} where torchrun started {started}; leave --processes out"
        )
    return started


def run(processes: int, job: Job) -> None:
    """Call a job in each process that torchrun started, in so many of this machine, or in this one."""
    if has_torchrun():
        with joined():
            job()
    elif processes > 1:
        start(processes, job)
    else:
        job()


@contextmanager
def joined() -> Iterator[None]:
    """Be one of the processes that torchrun started, while the context lasts."""
    store, rank, size = next(rendezvous("env://"))
    distributed.init_process_group("gloo", store=of_this_start(store, rank, size), rank=rank, world_size=size)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def of_this_start(store: Store, rank: int, size: int, timeout: timedelta = timedelta(minutes=30)) -> Store:
    """Return the part of a store that the processes have for themselves which were started together.

    torchrun keeps its store when it starts processes again (PyTorch issue 135712), and addresses that those
    before them left there lead nowhere. So each process leaves a token, and agrees to the tokens that it
    sees, until all have agreed to the same ones: one that is gone has agreed to none that are new.

    Raises:
        DistStoreError: not all came within ``timeout``.
    """
    keys = [f"fewbits/token/{other}" for other in range(size)]
    store.set(keys[rank], uuid4().hex)
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        store.wait(keys, timeout)
        seen = sha256(b"".join(store.multi_get(keys))).hexdigest()
        agreed = [f"fewbits/agreed/{seen}/{other}" for other in range(size)]
        store.set(agreed[rank], "yes")
        if store.check(agreed):
            return PrefixStore(f"fewbits/{seen}", store)
        if time.monotonic() > deadline:
            raise distributed.DistStoreError(f"{size} processes did not meet within {timeout}")
        time.sleep(0.02)


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
