"""The least sum of costs of vertices and of edges: one configuration for each vertex of any graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fewbits.errors import ArgumentError
from fewbits.planner.dominance import Table
from fewbits.planner.elimination import Elimination, Scope


@dataclass(frozen=True)
class Minimum:
    """A choice of configurations, and what is known about it.

    Attributes:
        cost: the sum of all tables at `choice`; infinite where only forbidden choices were found.
        choice: the index of a configuration for each vertex.
        width: entries of the widest table met.
        bound: None where `cost` is the minimum; otherwise no choice costs less than this.
        needed_bytes: of the largest table, which an exact minimum takes; None where `cost` is the minimum.
    """

    cost: float
    choice: tuple[int, ...]
    width: int
    bound: float | None = None
    needed_bytes: int | None = None

    @property
    def is_exact(self) -> bool:
        """Whether no choice costs less."""
        return self.bound is None


def minimize(
    costs: Sequence[ArrayLike],
    edges: Mapping[tuple[int, int], ArrayLike],
    *,
    memory_bytes: int = 2**30,
) -> Minimum:
    """Return the choice of one configuration for each vertex that costs least in all.

    Exact for any graph whose tables fit the memory: configurations that another one is never worse than are
    dropped, then vertices are eliminated, that with the smallest table next, with what PaSE (Elango 2021,
    section III) does in the order of fewest neighbours. Rounding may exchange choices whose costs differ by
    less than it.

    Args:
        costs: for each vertex i an array (k_i,); infinity forbids a configuration.
        edges: for pairs (i, j) of vertices an array (k_i, k_j) of what both choices cost together.
        memory_bytes: the most that one table of the elimination may take. Where the graph is too dense, the
            best choice found is returned with a lower bound and the bytes that an exact minimum needs.

    Raises:
        ArgumentError: an array is empty, of another shape, has NaN or -infinity, or a vertex does not exist.

    >>> minimize([[0, 2], [1, 0]], {(0, 1): [[9, 9], [0, 5]]})
    Minimum(cost=3.0, choice=(1, 0), width=4, bound=None, needed_bytes=None)
    """
    vertices = [_read(c, f"costs[{i}]", 1) for i, c in enumerate(costs)]
    pairs = _pairs(vertices, edges)
    if memory_bytes < 1:
        raise ArgumentError(f"memory_bytes={memory_bytes!r}; expected a number from 1 up")
    tables: dict[Scope, Table] = {(i,): c for i, c in enumerate(vertices)}
    problem = Elimination(tables | pairs, {i: np.arange(len(c)) for i, c in enumerate(vertices)})
    problem.run(memory_bytes)
    chosen = problem.choice()
    choice = [chosen[i] for i in range(len(vertices))]
    if problem.is_exact:
        return Minimum(_cost(vertices, pairs, choice), tuple(choice), problem.width)
    choice = _improve(vertices, pairs, choice)
    cost = _cost(vertices, pairs, choice)
    return Minimum(cost, tuple(choice), problem.width, min(problem.constant, cost), problem.needed_bytes)


def _pairs(vertices: Sequence[Table], edges: Mapping[tuple[int, int], ArrayLike]) -> dict[Scope, Table]:
    """Return tables by pairs in ascending order; those of both orders of a pair are added up."""
    pairs: dict[Scope, Table] = {}
    for (i, j), values in edges.items():
        if not (0 <= i < len(vertices) and 0 <= j < len(vertices)) or i == j:
            raise ArgumentError(
                f"edges[{i}, {j}] joins no two of the {len(vertices)} vertices; expected two from 0 to"
                f" {len(vertices) - 1}"
            )
        table, shape = _read(values, f"edges[{i}, {j}]", 2), (len(vertices[i]), len(vertices[j]))
        if table.shape != shape:
            raise ArgumentError(
                f"edges[{i}, {j}] has the shape {table.shape}; expected {shape}, the configurations of both"
            )
        key, table = ((i, j), table) if i < j else ((j, i), table.T)
        pairs[key] = pairs[key] + table if key in pairs else table
    return pairs


def _read(values: ArrayLike, name: str, dimensions: int) -> Table:
    table = np.asarray(values, np.float64)
    if table.ndim != dimensions or not table.size:
        raise ArgumentError(
            f"{name} has the shape {table.shape}; expected {dimensions} dimension(s), none of them empty"
        )
    if np.isnan(table).any() or (table == -np.inf).any():
        raise ArgumentError(f"{name} has NaN or -infinity; expected numbers, infinity for what is forbidden")
    return table


def _cost(vertices: Sequence[Table], pairs: Mapping[Scope, Table], choice: Sequence[int]) -> float:
    alone = sum(float(c[choice[i]]) for i, c in enumerate(vertices))
    return alone + sum(float(table[choice[i], choice[j]]) for (i, j), table in pairs.items())


def _improve(vertices: Sequence[Table], pairs: Mapping[Scope, Table], choice: list[int]) -> list[int]:
    """Give each vertex what is best beside the others, until nothing changes any more."""
    beside: list[list[tuple[int, Table]]] = [[] for _ in vertices]
    for (i, j), table in pairs.items():
        beside[i].append((j, table))
        beside[j].append((i, table.T))
    choice = list(choice)
    changed = True
    while changed:
        changed = False
        for i, c in enumerate(vertices):
            total = sum((table[:, choice[j]] for j, table in beside[i]), c)
            best = int(np.argmin(total))
            if total[best] < total[choice[i]]:
                choice[i], changed = best, True
    return choice
