"""How processes that train together meet; tests/train/test_together.py has what they do then."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore
from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import Store

from fewbits.errors import ArgumentError
from fewbits.train.launch import count_for, of_this_start

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


@pytest.mark.parametrize("text", ["", "abc", "-2", "2.0", 5000 * "9"])
def test_a_number_of_processes_that_is_none_is_told_by_its_variable(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", text)
    monkeypatch.delenv("RANK", raising=False)
    assert count_for(3) == 3  # torchrun sets both
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ArgumentError, match=r"WORLD_SIZE is '.{0,59}'?, beside RANK; expected how many"):
        count_for(1)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert count_for(1) == 4
