"""The processes of a group that a lattice is split over, as a grid, and what they tell each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from fewbits.errors import ArgumentError
from fewbits.solvers.lattice.axes import four_counts

Octets = NDArray[np.uint8]
AXES = ("T", "Z", "Y", "X")


@dataclass
class Sent:
    """Bytes that this process has handed to the network.

    Attributes:
        halos: sites at the faces of its part, in the format of their vector.
        sums: parts of sums over all sites, to each other process.
    """

    halos: int = 0
    sums: int = 0


@dataclass(frozen=True)
class Message:
    """Octets for another process, and room for what comes from it under the same tag."""

    sent: Octets
    to: int
    received: Octets
    source: int
    tag: int


class Processes:
    """A grid of processes; rank 0 has the first sites, and the next ones go along X, then Y, Z and T.

    Args:
        split: processes along T, Z, Y and X; all ones for a lattice that one process holds.
        group: a process group of torch.distributed; None for all processes. Not used with ones only.

    Raises:
        ArgumentError: ``split`` is not four numbers above zero, there is no process group, or it has another
            number of processes or no backend for the CPU.
    """

    def __init__(self, split: Sequence[int] = (1, 1, 1, 1), group: dist.ProcessGroup | None = None) -> None:
        grid = four_counts(split)
        if grid is None:
            raise ArgumentError(
                f"split={split!r}; expected the number of processes along T, Z, Y and X, whole numbers"
            )
        self.split, self.size, self.group = grid, math.prod(grid), group
        self.sent = Sent()
        self.rank = 0
        if self.size > 1:
            self._join()
        self.place = tuple(int(i) for i in np.unravel_index(self.rank, self.split))

    def _join(self) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ArgumentError(
                f"split={self.split} and no process group; call torch.distributed.init_process_group first,"
                f" in a program that torchrun started as {self.size} processes"
            )
        size = dist.get_world_size(self.group)
        if size != self.size:
            raise ArgumentError(
                f"split={self.split} is for {self.size} processes, and the group has {size}; give factors of"
                f" {size}, or start {self.size} processes"
            )
        if "gloo" not in dist.get_backend(self.group):
            raise ArgumentError(
                f"the group's backend is {dist.get_backend(self.group)}; these solvers run on the CPU: pass"
                " group=torch.distributed.new_group(backend='gloo')"
            )
        self.rank = dist.get_rank(self.group)

    def part(self, shape: Sequence[int]) -> tuple[slice, ...]:
        """Return the sites of this process, as slices along T, Z, Y and X.

        Raises:
            ArgumentError: an axis cannot be cut so.
        """
        for n, pieces, axis in zip(shape, self.split, AXES, strict=True):
            if pieces > 1 and n % pieces:
                raise ArgumentError(
                    f"split={self.split}: the {n} sites along {axis} are no multiple of {pieces}; take"
                    " another split"
                )
            if pieces > 1 and n // pieces % 2:
                raise ArgumentError(
                    f"split={self.split} leaves {n // pieces} of {n} sites along {axis} to a process;"
                    " expected an even number, at least 2"
                )
        sizes = [n // pieces for n, pieces in zip(shape, self.split, strict=True)]
        return tuple(slice(i * n, (i + 1) * n) for i, n in zip(self.place, sizes, strict=True))

    def beside(self, axis: int, step: int) -> int:
        """Return the rank of the next process along an axis, for a step of 1 or -1."""
        place = list(self.place)
        place[axis] = (place[axis] + step) % self.split[axis]
        return int(np.ravel_multi_index(place, self.split))

    def exchange(self, messages: Sequence[Message]) -> None:
        """Send all messages, and return when their answers have come."""
        steps = []
        for m in messages:
            for kind, octets, rank in ((dist.isend, m.sent, m.to), (dist.irecv, m.received, m.source)):
                peer = rank if self.group is None else dist.get_global_rank(self.group, rank)
                steps.append(dist.P2POp(kind, torch.from_numpy(octets), peer, self.group, m.tag))
            self.sent.halos += m.sent.nbytes
        for work in dist.batch_isend_irecv(steps) if steps else ():
            work.wait()

    def gathered(self, mine: torch.Tensor) -> torch.Tensor:
        """Return the values of all processes, (processes, ...), in the order of ranks."""
        if self.size == 1:
            return mine[None]
        flat = torch.view_as_real(mine.resolve_conj()) if mine.is_complex() else mine
        found = [torch.empty_like(flat) for _ in range(self.size)]
        dist.all_gather(found, flat.contiguous(), group=self.group)
        self.sent.sums += (self.size - 1) * flat.nbytes
        every = torch.stack(found)
        return torch.view_as_complex(every) if mine.is_complex() else every

    @contextmanager
    def agreeing(self, what: str) -> Iterator[None]:
        """Raise in all processes if the body raises in one, or if they announce different things.

        Raises:
            ArgumentError: another process refused what it was given, or was given something else.
        """
        if self.size == 1:
            yield
            return
        error: Exception | None = None
        try:
            yield
        except Exception as refused:
            error = refused
        what = f"split={self.split}, {what}"
        told: list[tuple[str, str | None]] = [("", None)] * self.size
        dist.all_gather_object(
            told, (what, None if error is None else str(error) or type(error).__name__), group=self.group
        )
        if error is not None:
            raise error
        for rank, (announced, refusal) in enumerate(told):
            if refusal is not None:
                raise ArgumentError(f"process {rank} refused its part: {refusal}")
            if announced != what:
                raise ArgumentError(
                    f"processes disagree: {what} here, {announced} in process {rank}; call with the same"
                    " settings everywhere"
                )
