"""Elimination of vertices: the minimum of a sum of tables, each of which depends on few vertices.

A vertex goes by replacing all tables that it is in by one over its neighbours, with the least over its own
configurations in each entry (Bertele and Brioschi, Nonserial Dynamic Programming, 1972). Where that table is
too large, the tables are dealt into groups, each of which gives a smaller table: a sum of minima, which is
never above the minimum of the sum (Dechter and Rish, Mini-Buckets, 2003). The result is a lower bound then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from math import prod

import numpy as np

from fewbits.planner.dominance import Indices, Table, undominated

Scope = tuple[int, ...]
ENTRY_BYTES = 32  # of a new table: the least, what it is added to, their sum, and a table kept for the choice
_AT_ONCE = 1 << 16  # entries that are added up in one array, which caches hold
_CHEAP = 1 << 22  # entries of a table that is made faster than dominated configurations are found
_WORTH_PRUNING = 1 << 22  # entries of a vertex's largest table; in larger ones the search costs more


@dataclass(frozen=True)
class _Gone:
    """How to choose for a vertex once its neighbours are chosen."""

    vertex: int
    kept: dict[int, Indices]  # its configurations at that time, and those of its neighbours
    tables: tuple[tuple[Scope, Table], ...]  # that it was in


@dataclass
class Elimination:
    """Tables over vertices, of which one after the other is eliminated."""

    tables: dict[Scope, Table]  # an axis for each vertex of the scope, which is in ascending order
    kept: dict[int, Indices]  # configurations of each vertex that are left
    constant: float = 0.0
    width: int = 1  # entries of the widest table met
    needed_bytes: int = 0  # of the widest table of an exact elimination; 0 where all was exact
    gone: list[_Gone] = field(default_factory=list)

    @property
    def is_exact(self) -> bool:
        """Whether no table was split."""
        return not self.needed_bytes

    def run(self, memory_bytes: int) -> None:
        """Eliminate all vertices; tables that do not fit the bytes are split, and `needed_bytes` tells."""
        within: dict[int, set[Scope]] = {v: set() for v in self.kept}
        for scope in self.tables:
            for v in scope:
                within[v].add(scope)
        unpruned, sizes = set(self.kept), {v: self._size(v, within) for v in within}
        while within:
            vertex = min(sizes, key=lambda v: (sizes[v], v))
            around = self._neighbours(vertex, within) | {vertex}
            if sizes[vertex] > _CHEAP and (unseen := around & unpruned):
                unpruned -= unseen
                changed = {w for v in unseen for w in self._prune(v, within)}
            else:
                self._eliminate(vertex, within, memory_bytes)
                del sizes[vertex]
                changed = around - {vertex}
                unpruned |= changed
            for v in changed:
                sizes[v] = self._size(v, within)

    def choice(self) -> dict[int, int]:
        """Return a configuration of each vertex: one that reaches the minimum where all was exact."""
        chosen: dict[int, int] = {}
        for gone in reversed(self.gone):
            own = gone.kept[gone.vertex]
            at = {v: int(np.searchsorted(gone.kept[v], chosen[v])) for v in gone.kept if v in chosen}
            total = np.zeros(len(own))
            for scope, table in gone.tables:
                total += table[tuple(slice(None) if v == gone.vertex else at[v] for v in scope)]
            chosen[gone.vertex] = int(own[np.argmin(total)])
        return chosen

    def _neighbours(self, vertex: int, within: Mapping[int, set[Scope]]) -> set[int]:
        return {v for scope in within[vertex] for v in scope} - {vertex}

    def _size(self, vertex: int, within: Mapping[int, set[Scope]]) -> int:
        return prod(len(self.kept[v]) for v in self._neighbours(vertex, within) | {vertex})

    def _prune(self, vertex: int, within: Mapping[int, set[Scope]]) -> set[int]:
        """Drop dominated configurations of a vertex; return the vertices whose tables become smaller."""
        k = len(self.kept[vertex])
        if k < 2 or any(self.tables[scope].size > _WORTH_PRUNING for scope in within[vertex]):
            return set()
        costs, tables = np.zeros(k), []
        for scope in within[vertex]:
            table = np.moveaxis(self.tables[scope], scope.index(vertex), 0).reshape(k, -1)
            if len(scope) == 1:
                costs = costs + table[:, 0]
            else:
                tables.append(table)
        left = undominated(costs, tables)
        if len(left) == k:
            return set()
        self.kept[vertex] = self.kept[vertex][left]
        for scope in within[vertex]:
            self.tables[scope] = np.take(self.tables[scope], left, axis=scope.index(vertex))
        return self._neighbours(vertex, within) | {vertex}

    def _eliminate(self, vertex: int, within: dict[int, set[Scope]], memory_bytes: int) -> None:
        scopes = sorted(within.pop(vertex), key=lambda s: (-len(s), s))
        tables = [(scope, self.tables.pop(scope)) for scope in scopes]
        for scope in scopes:
            for v in scope:
                if v != vertex:
                    within[v].discard(scope)
        others = tuple(sorted({v for scope in scopes for v in scope} - {vertex}))
        kept = {v: self.kept[v] for v in (vertex, *others)}
        self.gone.append(_Gone(vertex, kept, tuple(tables)))
        if ENTRY_BYTES * prod(len(kept[v]) for v in others) <= memory_bytes:
            self.width = max(self.width, prod(len(k) for k in kept.values()))
            self._add(others, self._least(vertex, others, tables), within)
            return
        self.needed_bytes = self.needed_bytes or self._needed(vertex, others, within)
        for group, members in self._groups(vertex, tables, memory_bytes):
            self._add(group, self._least(vertex, group, members), within)

    def _needed(self, vertex: int, others: Scope, within: Mapping[int, set[Scope]]) -> int:
        """Return the bytes of the widest table if this vertex and all after it were eliminated exactly."""
        beside = {v: self._neighbours(v, within) for v in within}
        beside[vertex] = set(others)
        widest = 0
        while beside:
            others = tuple(beside.pop(vertex))
            widest = max(widest, prod(len(self.kept[v]) for v in others))
            for v in others:
                beside[v] = (beside[v] | set(others)) - {v, vertex}
            if beside:
                vertex = min(beside, key=lambda v: prod(len(self.kept[w]) for w in (v, *beside[v])))
        return ENTRY_BYTES * widest

    def _groups(
        self, vertex: int, tables: list[tuple[Scope, Table]], memory_bytes: int
    ) -> list[tuple[Scope, list[tuple[Scope, Table]]]]:
        """Deal the tables of a vertex into groups whose tables fit, the widest first."""
        groups: list[tuple[Scope, list[tuple[Scope, Table]]]] = []
        for scope, table in tables:
            rest = set(scope) - {vertex}
            for i, (group, members) in enumerate(groups):
                union = tuple(sorted(rest | set(group)))
                if ENTRY_BYTES * prod(len(self.kept[v]) for v in union) <= memory_bytes:
                    groups[i] = (union, [*members, (scope, table)])
                    break
            else:
                groups.append((tuple(sorted(rest)), [(scope, table)]))
        return groups

    def _least(self, vertex: int, others: Scope, tables: list[tuple[Scope, Table]]) -> Table:
        """Add up tables over a vertex and others, in their order; return the least over the vertex."""
        axes = (vertex, *others)
        parts = []
        for scope, table in tables:
            order = sorted(range(len(scope)), key=lambda i: axes.index(scope[i]))
            extents = [len(self.kept[v]) if v in scope else 1 for v in axes]
            parts.append(np.ascontiguousarray(table.transpose(order)).reshape(extents))
        k, shape = len(self.kept[vertex]), tuple(len(self.kept[v]) for v in others)
        best = np.full(shape, np.inf)
        rows = max(1, _AT_ONCE // prod(shape[1:]))  # of the first of the others
        several = max(1, _AT_ONCE // (min(rows, prod(shape[:1])) * prod(shape[1:])))  # of the vertex
        for first in range(0, prod(shape[:1]), rows):
            there = slice(first, first + rows) if others else ()
            some = [part[:, there] if others and part.shape[1] > 1 else part for part in parts]
            for a in range(0, k, several):
                total = reduce(np.add, (part[a : a + several] if len(part) > 1 else part for part in some))
                least = total.min(axis=0) if len(total) > 1 else total[0]
                best[there] = np.minimum(best[there], least)
        return best

    def _add(self, scope: Scope, table: Table, within: dict[int, set[Scope]]) -> None:
        if not scope:
            self.constant += float(table)
            return
        self.tables[scope] = self.tables[scope] + table if scope in self.tables else table
        for v in scope:
            within[v].add(scope)
