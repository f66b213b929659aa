"""The part of a lattice that one process holds: its layout, its halos, and sums over all processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fewbits.kernels.bits.lattice import Field, Layout, Parts, added, zeros
from fewbits.solvers.lattice.order import Shape, extent_of
from fewbits.solvers.lattice.processes import Message, Processes
from fewbits.solvers.lattice.sums import exact_parts

Array = NDArray[Any]
Groups = NDArray[np.intp]

LOWER, UPPER = 0, 1  # half of an axis


@dataclass(frozen=True)
class _Face:
    """One side of a process's part.

    Attributes:
        axis: 0 to 3 for T, Z, Y and X.
        step: -1 for the side below the first sites, 1 for the one above the last ones.
        groups: those of this process at the other end of the axis, half of whose lanes stay as they are.
        rows: where the groups of the face lie behind those of a field.
    """

    axis: int
    step: int
    groups: Groups
    rows: Groups

    @property
    def foreign(self) -> int:
        """Which half of the lanes comes from the other process: the one that its end of the axis is in."""
        return UPPER if self.step < 0 else LOWER


class Domain:
    """The sites of this process.

    A group holds sites of both halves of an axis, and the groups beyond the last ones are the first ones,
    each lane flipped to the other half. Where the lattice goes on in another process, this is still so for
    one half of the lanes; the other half are the sites of the next process. So the groups of a face are those
    of this process with that half of the lanes replaced, and kernels read them like others.

    Args:
        shape: sites of this process along T, Z, Y and X; all even.
        processes: the grid.
    """

    def __init__(self, shape: Shape, processes: Processes) -> None:
        self.processes, self.shape = processes, shape
        t, z, y, x = (n > 1 for n in processes.split)
        self.layout = Layout(extent_of(shape), (t, z, y, x), self._total)
        self.groups = self.layout.groups
        self.even = np.indices(self.layout.extent).sum(0).reshape(-1) % 2 == 0
        places = np.arange(self.groups).reshape(self.layout.extent)
        self._faces, start = list[_Face](), self.groups
        for axis, split in enumerate(self.layout.split):
            for step in (-1, 1) if split else ():
                # Beyond the first groups are the last ones, and the other way round.
                groups = places.take(-1 if step < 0 else 0, axis).reshape(-1)
                self._faces.append(_Face(axis, step, groups, start + np.arange(len(groups))))
                start += len(groups)

    def zeros(self, dtype: Any, reals: int) -> Field:
        """Return a field of zeros with room for its halo."""
        return zeros(self.layout.stored, dtype, reals)

    def with_room(self, values: Array) -> Array:
        """Return a copy of (groups, ...) with room for its halo; the array itself where it has none."""
        if self.layout.stored == self.groups:
            return values
        room = np.zeros((self.layout.stored, *values.shape[1:]), values.dtype)
        room[: self.groups] = values
        return room

    def fill(self, field: Field, parity: int | None = None) -> None:
        """Fill the halo of a field, for groups of one parity only if that is given.

        What travels are the sites of a face as they are stored: numbers, then norms if there are any.
        """
        arrays = [a for a in field if a is not None]
        messages = list[Message]()
        chosen = [self._chosen(face, parity) for face in self._faces]
        for face, (groups, _) in zip(self._faces, chosen, strict=True):
            parts = [np.ascontiguousarray(_half(a[groups], face)).reshape(-1).view(np.uint8) for a in arrays]
            octets = np.concatenate(parts)
            # What others see beyond this kind of face lies at this process's end on the other side.
            to = self.processes.beside(face.axis, -face.step)
            source = self.processes.beside(face.axis, face.step)
            tag = 2 * face.axis + (face.step > 0)
            messages.append(Message(octets, to, np.empty_like(octets), source, tag))
        self.processes.exchange(messages)
        for face, (groups, rows), message in zip(self._faces, chosen, messages, strict=True):
            start = 0
            for a in arrays:
                beyond = a[groups]
                half = _half(beyond, face)
                size = half.nbytes
                half[...] = message.received[start : start + size].view(a.dtype).reshape(half.shape)
                a[rows], start = beyond, start + size

    def _chosen(self, face: _Face, parity: int | None) -> tuple[Groups, Groups]:
        """Return the groups of a face, and where they go; of one parity if that is given."""
        if parity is None:
            return face.groups, face.rows
        kept = self.even[face.groups] == (parity == 0)
        return face.groups[kept], face.rows[kept]

    def total(self, v: Array) -> float:
        """Return the sum of ``v`` over all processes: the exact sum, rounded once."""
        return self._total((exact_parts(v),))[0]

    def _total(self, parts: Parts) -> tuple[float, ...]:
        if self.processes.size == 1:
            return added(parts)
        every = self.processes.gathered(torch.tensor(parts, dtype=torch.float64)).numpy()
        return added([every[:, i].reshape(-1).tolist() for i in range(len(parts))])

    def summed(self, sums: torch.Tensor) -> torch.Tensor:
        """Return sums of the processes added in the order of ranks: the same bits in each of them."""
        total: torch.Tensor = self.processes.gathered(sums).sum(0) if self.processes.size > 1 else sums
        return total

    def peak(self, value: float) -> float:
        """Return the largest value of all processes."""
        if self.processes.size == 1:
            return value
        return float(self.processes.gathered(torch.tensor([value], dtype=torch.float64)).max())


def _half(groups: Array, face: _Face) -> Array:
    """Return the lanes of (groups, ..., 16) that come from another process; a view of contiguous groups."""
    lanes = groups.reshape(*groups.shape[:-1], 2, 2, 2, 2)
    half: Array = np.moveaxis(lanes, face.axis - 4, 0)[face.foreign]
    return half
