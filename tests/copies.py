"""Processes that tests start: copies of one that has imported what they need, each there in a moment."""

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
