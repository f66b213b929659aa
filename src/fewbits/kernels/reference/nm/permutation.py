"""The search for an order of columns under which N:M keeps more: the definition of its two steps.

Channel Permutations for N:M Sparsity (Pool and Yu, NeurIPS 2021) has the problem. Magnitudes are integers,
so that no sum depends on its order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbits.kernels.bits.nm_permutation import NmPermutation


def evaluate_groups(s: NmPermutation) -> None:
    """Write edges, bases and scores of the order."""
    for group in range(len(s.scores)):
        _evaluate_group(s, group)


def _evaluate_group(s: NmPermutation, group: int) -> None:
    positions = range(group * s.group, (group + 1) * s.group)
    for p in positions:
        others = np.sort(s.magnitudes[s.order[[q for q in positions if q != p]]], axis=0)[::-1]
        s.edges[p] = others[s.keep - 1]
        s.bases[p] = others[: s.keep - 1].sum(dtype=np.int64)
    s.scores[group] = _score_with(s, positions[0], s.order[positions[0]])


def _score_with(s: NmPermutation, p: int, column: int) -> np.int64:
    """Return what the group of position ``p`` keeps once ``p`` holds ``column``."""
    kept: np.int64 = s.bases[p] + np.maximum(s.edges[p], s.magnitudes[column]).sum(dtype=np.int64)
    return kept


def anneal(
    s: NmPermutation, pairs: NDArray[np.int32], allowances: NDArray[np.int64], gains: NDArray[np.int64]
) -> int:
    """Try swaps one after the other and return how many were made.

    Args:
        s: a state whose groups were evaluated.
        pairs: the positions of each swap, ``(n, 2)``; two of one group are left.
        allowances: a swap is made where its gain and its allowance are together above zero.
        gains: receives what each swap would add, or added, to what is kept.
    """
    accepted = 0
    for k, (p, q) in enumerate(pairs):
        groups = p // s.group, q // s.group
        gains[k] = 0
        if groups[0] == groups[1]:
            continue
        gains[k] = _score_with(s, p, s.order[q]) + _score_with(s, q, s.order[p])
        gains[k] -= s.scores[groups[0]] + s.scores[groups[1]]
        if gains[k] + allowances[k] > 0:
            s.order[[p, q]] = s.order[[q, p]]
            for group in groups:
                _evaluate_group(s, group)
            accepted += 1
    return accepted
