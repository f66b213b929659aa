"""A first pass over a tensor, for the largest values that scales shared by several pieces depend on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits import kernels
from fewbits.formats import Format, for_one_channel, shares_scale
from fewbits.kernels.bits.reals import widened

Piece = NDArray[Any]  # as fewbits.kernels takes it


@dataclass
class Survey:
    """Largest values of a tensor that is read in pieces, and what is not finite in it."""

    largest: float = 0.0  # finite magnitude
    nans: int = 0
    infinities: int = 0
    largest_of_row: dict[int, float] = field(default_factory=dict)  # only of rows that are cut into pieces

    def scale_of(self, format: Format, row: int, is_part: bool) -> tuple[Format, float]:
        """Return the format to round a piece with, and the largest magnitude for its scale.

        Args:
            format: of the tensor.
            row: index of the piece's first row.
            is_part: whether the piece is only part of that row.
        """
        if is_part and shares_scale(format, "channel"):
            # One scale for the row: treated as a scale per tensor with a known largest value.
            return for_one_channel(format), self.largest_of_row[row]
        return format, self.largest

    def include(self, other: Survey) -> None:
        """Add the values of another tensor, whose scale per tensor is the same."""
        self.largest = max(self.largest, other.largest)
        self.nans += other.nans
        self.infinities += other.infinities


def survey(pieces: Iterable[Piece], row: int) -> Survey:
    """Read a tensor once.

    Args:
        pieces: of :func:`fewbits.files.checkpoint.chunks`: (rows, n) of whole rows, or (1, part of a row).
        row: values in a row.
    """
    seen, at = Survey(), 0
    for piece in pieces:
        largest, is_finite = kernels.largest_finite(piece)
        if not is_finite:
            wide = widened(piece)
            seen.nans += int(np.count_nonzero(np.isnan(wide)))
            seen.infinities += int(np.count_nonzero(np.isinf(wide)))
        seen.largest = max(seen.largest, largest)
        if piece.shape[1] < row:
            seen.largest_of_row[at // row] = max(largest, seen.largest_of_row.get(at // row, 0.0))
        at += piece.size
    return seen
