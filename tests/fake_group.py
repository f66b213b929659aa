"""One process of several that are imagined: what they would send never comes."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def imagined(processes: int) -> Iterator[None]:
    """Be the first of so many processes."""
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=processes)
    try:
        yield
    finally:
        distributed.destroy_process_group()
