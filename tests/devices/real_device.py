"""A GPU in place of the device that is none: what the host waits for is what CUDA says it waits for.

For ``FEWBITS_TEST_DEVICE=cuda python -m pytest tests/devices -p no:warnings`` on a machine that has one.
Copies to the device wait for nothing that can be seen, and count only where they wait.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class RealDevice:
    """A GPU, and each wait of the host for it since."""

    def __init__(self, device: torch.device, transfers: list[Any]) -> None:
        self.device, self._transfers = device, transfers

    @property
    def transfers(self) -> list[Any]:
        """What the host waited for, each a Transfer but for the line of fewbits."""
        for one in self._transfers:
            one.way, one.what, one.where = "read", str(one.message), f"{one.filename}:{one.lineno}"
        return self._transfers

    def put(self, x: torch.Tensor) -> torch.Tensor:
        """Return a copy of ``x`` on the device that counts as none."""
        with _unseen():
            return x.detach().clone().to(self.device)

    def seen(self, x: torch.Tensor) -> torch.Tensor:
        """Return the values of a tensor on the device, a look that counts as none."""
        assert x.device == self.device, f"{x.device} is not the device"
        with _unseen():
            return x.detach().cpu().clone()

    @property
    def reads(self) -> list[Any]:
        """The same: copies to the device are not seen."""
        return self.transfers


@contextmanager
def _unseen() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("default")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("warn")


@contextmanager
def real_device(device: torch.device) -> Iterator[RealDevice]:
    """Have the GPU, and count its waits, for as long as the context lasts."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", message="called a synchronizing CUDA operation")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield RealDevice(device, seen)
        finally:
            torch.cuda.set_sync_debug_mode("default")
