"""Processes that tests start: copies of one that has imported what they need, each there in a moment."""

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from torch import multiprocessing

# What workers of several tests import; all of it takes longer than most of what they do.
_IMPORTED = (
    "sklearn.datasets",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.utils.tensorboard",
    "fewbits.cli.main",
    "fewbits.compare.codec_runs",
    "fewbits.distributed",
    "fewbits.nn",
    "fewbits.optim",
    "fewbits.planner.execution",
    "fewbits.train.runs",
)


def copies() -> Any:
    """Return the context that makes them; their environment and output are those of its first use."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED))
    return context


def start_copies(work: Any, args: tuple[Any, ...], nprocs: int, **options: Any) -> Any:
    """Do as ``torch.multiprocessing.start_processes``."""
    copies()
    return multiprocessing.start_processes(work, args, nprocs, **options | {"start_method": "forkserver"})


def kill_after(told: int, work: Callable[[Path, Connection], None], folder: Path, wait: float = 0.0) -> None:
    """Start ``work`` in a copy, and kill it ``wait`` seconds after it has sent so many messages."""
    mine, theirs = copies().Pipe(duplex=False)
    child = copies().Process(target=work, args=(folder, theirs))
    child.start()
    theirs.close()
    for _ in range(told):
        mine.recv()
    time.sleep(wait)
    child.kill()
    child.join()
    mine.close()
