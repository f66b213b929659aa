"""The search for an order of columns; kernels/reference/nm/permutation.py defines it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.kernels.bits.nm_permutation import NmPermutation
from fewbits.kernels.native.dispatch.isa import active_isa


class PermutationSearch:
    """The two steps on one state, whose arrays are read and written where they lie."""

    def __init__(self, s: NmPermutation) -> None:
        active_isa()
        self._held = _native.NmPermutation(s.magnitudes, s.order, s.edges, s.bases, s.scores, s.keep)

    def evaluate_groups(self, threads: int) -> None:
        """Write edges, bases and scores of the order."""
        _native.evaluate_groups(self._held, threads)

    def anneal(
        self, pairs: NDArray[np.int32], allowances: NDArray[np.int64], gains: NDArray[np.int64]
    ) -> int:
        """Try swaps one after the other and return how many were made."""
        return _native.anneal(self._held, pairs, allowances, gains)
