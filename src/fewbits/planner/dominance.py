"""Configurations that no neighbour can make worth choosing: one of the same vertex is never worse.

This is Goldstein's criterion of dead-end elimination (Efficient Rotamer Elimination Applied to Protein
Side-Chains and Related Spin Glasses, 1994): a is never worse than b if

    c[a] - c[b] + sum over neighbours of max_x (E[a, x] - E[b, x]) <= 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.float64]
Indices = NDArray[np.int64]
_AT_ONCE = 1 << 16  # differences in one array, which caches hold
_FEW = 4  # configurations of a neighbour that show of most pairs that neither removes the other


def undominated(costs: Table, tables: Sequence[Table]) -> Indices:
    """Return the configurations that remain, in ascending order; of equal ones, one.

    Args:
        costs: (k,), what each configuration costs alone.
        tables: for each neighbour a table (k, n), by the configuration of the neighbour, or of several.
    """
    possible = np.isfinite(costs)
    for table in tables:
        possible &= np.isfinite(table).any(axis=1)
    left = np.flatnonzero(possible)
    if len(left) < 2:
        return left if len(left) else np.zeros(1, np.int64)  # all are forbidden: any stands for the others
    costs, tables = costs[left], [_distinct_columns(table[left]) for table in tables]
    order = np.argsort(sum((t.min(axis=1) for t in tables), costs), kind="stable")
    with np.errstate(invalid="ignore"):  # where both are forbidden
        return left[np.sort(_pass(costs, tables, order))]


def _pass(costs: Table, tables: Sequence[Table], order: Indices) -> Indices:
    """Return what is left if each, in that order, removes those after it that are never better.

    Only what stays removes others, so rounding makes no circle in which all remove each other.
    """
    kept: list[int] = []
    widest = max((t.shape[1] for t in tables), default=1)
    order, costs, tables = order.copy(), costs[order], [table[order] for table in tables]
    while len(order):
        n = max(1, _AT_ONCE // (len(order) * min(widest, 4 * _FEW)))
        never_worse = _never_worse(costs, tables, n, max(1, _AT_ONCE // widest))
        stays = np.ones(len(order), bool)
        for a, removes in enumerate(never_worse):
            if stays[a]:
                kept.append(int(order[a]))
                stays &= ~removes
                stays[a] = True
        stays[:n] = False  # they are done
        order, costs, tables = order[stays], costs[stays], [t[stays] for t in tables]
    return np.array(kept)


def _never_worse(costs: Table, tables: Sequence[Table], n: int, at_once: int) -> NDArray[np.bool_]:
    """Return (n, k): which of the first n are never worse than which."""
    few = [np.ascontiguousarray(t[:, :: -(-t.shape[1] // _FEW)].T) for t in tables]
    excess = costs[:n, None] - costs
    for columns in few:
        largest = np.full_like(excess, -np.inf)
        for column in columns:
            np.fmax(largest, column[:n, None] - column, out=largest)
        excess += largest
    a, b = np.nonzero(excess <= 0)
    never_worse = np.zeros(excess.shape, bool)
    for i in range(0, len(a), at_once):
        of_a, of_b = a[i : i + at_once], b[i : i + at_once]
        pairs = costs[of_a] - costs[of_b]
        for table in tables:
            # What both cannot have is no reason to keep either: fmax passes over NaN.
            pairs += np.fmax.reduce(table[of_a] - table[of_b], axis=-1, initial=-np.inf)
        never_worse[of_a, of_b] = pairs <= 0
    return never_worse


def _distinct_columns(table: Table) -> Table:
    """Return the table with equal columns once, as only the largest difference counts."""
    columns = np.ascontiguousarray(table.T)
    if columns.shape[0] < 2:
        return table
    keys = columns.view(np.dtype((np.void, columns.itemsize * columns.shape[1]))).ravel()
    return table[:, np.unique(keys, return_index=True)[1]]
