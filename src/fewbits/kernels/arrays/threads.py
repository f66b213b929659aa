"""How many threads a kernel may use."""

from __future__ import annotations

import os
import sys


def threads() -> int:
    """Return how many threads a kernel may use.

    That is the setting of torch if torch is imported, else ``OMP_NUM_THREADS``, else the number of cores
    available to this process.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.get_num_threads())
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # a list is for nested teams
    if first.isdecimal() and int(first) > 0:
        return int(first)
    may_run = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(may_run(0)) if may_run else os.cpu_count() or 1
