"""The links that a process works on: its part of a gauge field, checked, with the signs of a boundary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fewbits.errors import ArgumentError
from fewbits.kernels.bits.lattice import compress_links, expand_links
from fewbits.solvers.lattice.domain import Domain
from fewbits.solvers.lattice.links import check_links, check_shape, read_boundary, with_boundary
from fewbits.solvers.lattice.processes import Processes
from fewbits.solvers.lattice.stored_links import StoredLinks
from fewbits.tensor.inputs import is_count

Array = NDArray[np.complex128]
RECONSTRUCT = (18, 12, 8)
EIGHT = 1e-6  # largest error of a link after reconstruction from 8 numbers in float64


class GaugeField:
    """Links of one process.

    Args:
        links: (4, T, Z, Y, X, 3, 3), of the whole lattice.
        boundary: 1 or -1 along T, Z, Y and X.
        reconstruct: 18, 12 or 8 numbers for a link; None for 12, or 18 with an antiperiodic axis.
        processes: those that share the lattice.
        multiple: what the kernels need each axis to be a multiple of; others are worked on as copies.

    Attributes:
        part: the sites of this process.
        shape: how many along each axis.
        copies: how often each axis is repeated.

    Raises:
        ArgumentError: a shape or number is not one of these, links are not in SU(3), or a split axis would
            need copies.
        DataError: NaN or infinity.
    """

    def __init__(
        self,
        links: Array,
        boundary: Sequence[int],
        reconstruct: int | None,
        processes: Processes,
        multiple: int = 2,
    ) -> None:
        whole = check_shape(links)
        boundary = read_boundary(boundary)
        self.numbers = _numbers(reconstruct, boundary)
        self.processes, self._links, self._boundary = processes, links, boundary
        self.part = processes.part(whole)
        self.own = links[(slice(None), *self.part)].astype(np.complex128)
        check_links(self.own)
        if self.numbers == 8:
            _check_eight(self.own)
        self.shape = check_shape(self.own)
        self.copies = tuple(multiple // np.gcd(multiple, n) for n in self.shape)
        for n, pieces, copies in zip(self.shape, processes.split, self.copies, strict=True):
            if pieces > 1 and copies > 1:
                raise ArgumentError(
                    f"split={processes.split} leaves a process {self.shape} sites; expected multiples of"
                    f" {multiple} along the axes that are split, and not {n}"
                )

    def stored(self) -> StoredLinks:
        """Return the links for the kernels; all processes call this together."""
        ends = zip(self._boundary, self.processes.place, self.processes.split, strict=True)
        signed = with_boundary(self.own, [sign if i == n - 1 else 1 for sign, i, n in ends])
        tiled = np.tile(signed, (1, *self.copies, 1, 1))
        return StoredLinks(tiled, Domain(tiled.shape[1:5], self.processes), self.numbers)

    def around(self) -> Array:
        """Return the links of this process and of one more layer on both sides of each axis that is split."""
        layer = self._links
        for axis, (part, pieces) in enumerate(zip(self.part, self.processes.split, strict=True)):
            if pieces > 1:
                places = np.arange(part.start - 1, part.stop + 1)
                layer = layer.take(places, axis + 1, mode="wrap")
        return layer.astype(np.complex128)

    def inside(self, values: Array) -> Array:
        """Return what is of the sites of this process of (T, Z, Y, X, ...) values for :meth:`around`."""
        return values[tuple(slice(1, -1) if n > 1 else slice(None) for n in self.processes.split)]


def _numbers(reconstruct: int | None, boundary: Sequence[int]) -> int:
    """Return how many numbers are stored for each link; raise ArgumentError if that cannot be."""
    if reconstruct is None:
        return 18 if -1 in boundary else 12
    if not is_count(reconstruct) or reconstruct not in RECONSTRUCT:
        raise ArgumentError(f"reconstruct={reconstruct!r}; expected 18, 12 or 8 numbers for a link")
    if reconstruct != 18 and -1 in boundary:
        raise ArgumentError(
            f"reconstruct={reconstruct} is for links in SU(3), and links with a sign are not; take 18,"
            " or leave it out"
        )
    return int(reconstruct)


def _check_eight(links: Array) -> None:
    """Raise ArgumentError if 8 numbers do not determine a link: its second row is nearly (a1, 0, 0)."""
    off = np.abs(expand_links(compress_links(links, 8)) - links).max()
    if off > EIGHT:
        raise ArgumentError(
            f"8 numbers give a link back with an error of {off:.1e}, since its second row is near (a1, 0, 0);"
            " take reconstruct=12"
        )
