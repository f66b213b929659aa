"""The processes of a group, and the exchanges of bytes between them that everything else is made of."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import distributed

from fewbits.distributed.memory import empty
from fewbits.distributed.traffic import Traffic
from fewbits.errors import ArgumentError
from fewbits.versions import release

_TEXT, _DIGEST, _NUMBERS = 464, 16, 4  # bytes of an announcement, and 64-bit numbers behind them
_FAILED = "failed: "
_WIRE = 3  # version of what travels
_VERSION = release("fewbits")

# Which torch renamed in 2.13.
_ALL_GATHER = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor


class Peers:
    """The processes of one group, this one's rank, and where bytes have to lie for its backend.

    Args:
        group: a process group; None: all processes.
        traffic: counts what is sent.
    """

    def __init__(self, group: Any = None, traffic: Traffic | None = None) -> None:
        if not (distributed.is_available() and distributed.is_initialized()):
            raise ArgumentError(
                "there is no process group; call torch.distributed.init_process_group first, in a program"
                " that torchrun started"
            )
        self.group = group
        try:
            self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            raise ArgumentError(
                f"group={group!r:.80} is no process group; expected one of torch.distributed.new_group, a"
                " mesh, or None for all processes"
            ) from None
        if self.rank < 0:
            raise ArgumentError("this process is not in the group; call collectives only where it is")
        on_gpu = distributed.get_backend(group) == "nccl"
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        self.traffic = Traffic()
        if traffic is not None:
            with self.telling():
                self.traffic = _checked(traffic)

    def all_gather(self, mine: torch.Tensor, name: str = "all_gather") -> torch.Tensor:
        """Return (processes, n) uint8: the ``n`` bytes of each."""
        sent = mine.to(self.device)
        found = self._received(self.size * sent.numel())
        if sent.numel():
            _ALL_GATHER(found, sent, group=self.group)
        self.traffic.count(name, (self.size - 1) * sent.numel())
        return found.to(mine.device).view(self.size, sent.numel())

    def exchange(
        self,
        run_for: Callable[[int], torch.Tensor],
        received: Sequence[int],
        name: str,
        into: Sequence[torch.Tensor] | None = None,
    ) -> Iterator[torch.Tensor]:
        """Yield the run of bytes that each process has for this one, in the order of ranks.

        One travels while the next is made, and while those of lower ranks are used. That of this process is
        not copied. All have left when the last one was used. Runs on a device, in a group whose backend is
        the CPU's, are the bytes that the host carries.

        Args:
            run_for: returns the run for a process, (bytes,) uint8; called once for each.
            received: bytes of the run from each process.
            name: under which the traffic is counted.
            into: where they are written, (bytes,) uint8 for each process; None: kept memory.
        """
        others = [(self.rank + step) % self.size for step in range(1, self.size)]
        if self.device.type != "cpu":  # whose sends may wait for receives in another order
            runs = [run_for(rank) for rank in range(self.size)]
            sizes = [run.numel() for run in runs]
            yield from self.all_to_all(torch.cat(runs), sizes, received, name)
            return
        places = self._received(sum(received)).split(list(received)) if into is None else into
        arriving = {
            rank: distributed.irecv(places[rank], group=self.group, group_src=rank)
            for rank in others
            if received[rank]
        }
        leaving, nbytes = [], 0
        for rank in others:
            run = run_for(rank).to(self.device)
            nbytes += run.numel()
            if run.numel():
                leaving.append(distributed.isend(run, group=self.group, group_dst=rank))
        self.traffic.count(name, nbytes)
        own = run_for(self.rank)
        for rank in range(self.size):
            _wait(arriving.get(rank))
            yield own if rank == self.rank else places[rank].to(own.device)
        for work in leaving:
            _wait(work)

    def _received(self, nbytes: int) -> torch.Tensor:
        """Return where the backend writes what arrives."""
        on_cpu = self.device.type == "cpu"
        return (
            empty(nbytes, torch.uint8)
            if on_cpu
            else torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        )

    def all_to_all(
        self, sent: torch.Tensor, sizes: Sequence[int], received: Sequence[int], name: str = "all_to_all"
    ) -> tuple[torch.Tensor, ...]:
        """Send a run of bytes to each process, and return what each sent here.

        Args:
            sent: all runs, one after the other, uint8.
            sizes: bytes of the run for each process.
            received: bytes of the run from each process.
            name: under which the traffic is counted.
        """
        found = self._received(sum(received))
        distributed.all_to_all_single(
            found, sent.to(self.device), list(received), list(sizes), group=self.group
        )
        self.traffic.count(name, sum(sizes) - sizes[self.rank])
        runs: tuple[torch.Tensor, ...] = found.to(sent.device).split(list(received))
        return runs

    def maxima(self, mine: torch.Tensor) -> torch.Tensor:
        """Return the largest of each of ``n`` bytes, (n,) uint8, over the processes."""
        return self.all_gather(mine, "maxima").amax(0) if mine.numel() else mine

    def agree(self, what: str, numbers: Sequence[int] = ()) -> list[list[int]]:
        """Raise on every process unless all announce the same; return the numbers of each.

        Args:
            what: is compared: the collective, its codec, dtypes and shapes.
            numbers: are not; four at most.

        Raises:
            ArgumentError: processes differ, or one of them failed.
        """
        text = f"fewbits {_VERSION}, wire {_WIRE}: {what}"
        rows = self.all_gather(_announcement(text, numbers), "agreement").numpy()
        others = [_text(row) for row in rows]
        failed = next((r for r, (told, _) in enumerate(others) if told.startswith(_FAILED)), None)
        if failed is not None:
            raise ArgumentError(f"rank {failed} {others[failed][0]}; all ranks stop here")
        differing = next((r for r, told in enumerate(others) if told != others[0]), None)
        if differing is not None:
            raise ArgumentError(
                f"processes disagree: rank 0 has {others[0][0]!r}, rank {differing} has"
                f" {others[differing][0]!r}; run the same program with the same settings everywhere"
            )
        start = _TEXT + _DIGEST
        return [np.frombuffer(row[start:].tobytes(), np.int64).tolist() for row in rows]

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Tell the others, who wait for this process to agree, if checks inside of the context fail."""
        try:
            yield
        except Exception as error:
            self.all_gather(_announcement(f"{_FAILED}{error}", ()), "agreement")
            raise


def _checked(traffic: object) -> Traffic:
    if not isinstance(traffic, Traffic):
        raise ArgumentError(f"traffic={traffic!r:.80}; expected a Traffic, or None")
    return traffic


def _wait(work: distributed.Work | None) -> None:
    if work is not None:
        work.wait()


def _announcement(text: str, numbers: Sequence[int]) -> torch.Tensor:
    octets = text.encode()
    digest = hashlib.blake2b(octets, digest_size=_DIGEST).digest()
    shown = octets[:_TEXT].decode(errors="ignore").encode().ljust(_TEXT, b"\0")
    padded = np.zeros(_NUMBERS, np.int64)
    padded[: len(numbers)] = numbers
    return torch.frombuffer(bytearray(shown + digest + padded.tobytes()), dtype=torch.uint8)


def _text(row: np.ndarray[Any, Any]) -> tuple[str, bytes]:
    octets = row[: _TEXT + _DIGEST].tobytes()
    return octets[:_TEXT].rstrip(b"\0").decode(), octets[_TEXT:]
