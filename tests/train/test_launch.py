"""How processes that train together meet; tests/train/test_together.py has what they do then."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore
from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import Store

from fewbits.train.launch import of_this_start

RANKS = 4


def started(store: Store, late: float = 0.0) -> list[str]:
    """Let RANKS threads meet in a store, and return what each finds that the first left for them."""
    found = [""] * RANKS

    def one(rank: int) -> None:
        if late:
            threading.Event().wait(late * rank)
        part = of_this_start(store, rank, RANKS)
        if rank == 0:
            part.set("address", threading.current_thread().name)
        found[rank] = part.get("address").decode()

    threads = [
        threading.Thread(target=one, args=(rank,), name=f"{id(found)}-{rank}") for rank in range(RANKS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    return found


def test_processes_started_again_do_not_read_what_those_before_them_left() -> None:
    store = HashStore()
    first, again, later = started(store), started(store), started(store, late=0.05)
    assert len({first[0], again[0], later[0]}) == 3


def test_a_start_of_which_one_was_killed_is_met_by_nobody() -> None:
    store = HashStore()
    started(store)
    with pytest.raises(DistStoreError, match="4 processes did not meet"):
        of_this_start(store, 1, RANKS, timedelta(milliseconds=200))  # beside the others' old tokens
    started(store)
