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
_AT_ONCE = 1 << 17  # differences of all pairs; beyond it, one configuration is compared after the other


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
    # Only what is kept removes others, so that rounding makes no circle in which all remove each other.
    with np.errstate(invalid="ignore"):  # where both are forbidden
        kept = _pass(costs, tables, order)
        kept = _pass(costs, tables, kept[::-1])
    return left[np.sort(kept)]


def _pass(costs: Table, tables: Sequence[Table], order: Indices) -> Indices:
    """Return what is left if each, in that order, removes those after it that are never better."""
    if len(order) ** 2 * max((t.shape[1] for t in tables), default=1) <= _AT_ONCE:
        never_worse = _excess(costs[:, None], costs, [(t[:, None], t[None]) for t in tables]) <= 0
        kept, left = [], order
        while len(left):
            kept.append(left[0])
            left = left[1:][~never_worse[left[0], left[1:]]]
        return np.array(kept)
    kept, left = [], order
    costs, tables = costs[order], [table[order] for table in tables]
    while len(left):
        better = _excess(costs[0], costs[1:], [(t[:1], t[1:]) for t in tables]) > 0
        kept.append(left[0])
        left, costs, tables = left[1:][better], costs[1:][better], [t[1:][better] for t in tables]
    return np.array(kept)


def _excess(a: Table, b: Table, tables: Sequence[tuple[Table, Table]]) -> Table:
    """Return the most that a can cost above b, whatever the neighbours do."""
    excess = a - b
    for of_a, of_b in tables:
        difference = of_a - of_b
        excess = excess + np.where(np.isnan(difference), -np.inf, difference).max(axis=-1)
    return excess


def _distinct_columns(table: Table) -> Table:
    """Return the table with equal columns once, as only the largest difference counts."""
    columns = np.ascontiguousarray(table.T)
    if columns.shape[0] < 2:
        return table
    keys = columns.view(np.dtype((np.void, columns.itemsize * columns.shape[1]))).ravel()
    return table[:, np.unique(keys, return_index=True)[1]]
