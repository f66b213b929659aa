"""State of the column permutation search for N:M: an order of columns, and the effect of each swap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LARGEST_SUM = 2**30  # of the rows times the largest magnitude: sums of a row have 32 bits


@dataclass(frozen=True)
class NmPermutation:
    """The state of a search. Position ``p`` belongs to group ``p // group`` and holds column ``order[p]``.

    If it held the column ``x``, its group would keep ``bases[p] + sum(max(edges[p], x))``: ``bases`` is what
    the other columns keep in any case, and ``edges`` the value that ``x`` has to exceed in each row.
    """

    magnitudes: NDArray[np.int32]  # (columns, rows)
    order: NDArray[np.int32]  # (columns,)
    edges: NDArray[np.int32]  # (columns, rows)
    bases: NDArray[np.int64]  # (columns,)
    scores: NDArray[np.int64]  # (groups,): what each group keeps
    keep: int

    @property
    def group(self) -> int:
        """Columns in a group."""
        return len(self.order) // len(self.scores)


def identity_permutation(magnitudes: NDArray[np.int32], keep: int, group: int) -> NmPermutation:
    """Return a state with the columns in the given order; ``evaluate_groups`` of a backend fills the rest.

    Args:
        magnitudes: of shape (columns, rows), from 0 to :data:`LARGEST_SUM` over the rows.
        keep: columns that a group keeps in a row.
        group: columns in a group; divides their number.
    """
    columns = len(magnitudes)
    return NmPermutation(
        magnitudes,
        np.arange(columns, dtype=np.int32),
        np.zeros_like(magnitudes),
        np.zeros(columns, np.int64),
        np.zeros(columns // group, np.int64),
        keep,
    )
