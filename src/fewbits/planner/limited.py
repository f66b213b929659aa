"""The cheapest choice within limits on sums: of memory, and of sensitivity.

Lagrange multipliers put prices on what is limited. For any prices, the least cost with them, minus the price
of the limits, is below the cost of every choice that keeps the limits; the best prices are found by cutting
planes (Kelley, 1960). Where all that was met is above one limit or another, what is least above them is
brought within them by exchanges. A choice within the limits is then improved layer by layer. Its distance to
the bound is told: where it is zero, the choice is proved the best.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from scipy.optimize import linprog

from fewbits.planner.layer_cost import Reals
from fewbits.planner.tables import Tables

_CUTS = 40  # at most; each takes one search
_LARGEST_MOVE = 1 << 16  # pairs of options that are tried at once
_REPAIRS = 3  # choices that are brought within the limits where none met keeps them
_CLOSE = 1e-6  # of the cost: where bound and best prices agree to this, no further cut is asked for


@dataclass(frozen=True)
class Choice:
    """Options of all layers, their time, and a bound on the time of all choices within the limits."""

    options: tuple[int, ...]
    seconds: float
    bound: float


def cheapest(
    tables: Tables,
    limits: Mapping[str, float],
    memory_bytes: int,
    others: Iterable[tuple[int, ...]] = (),
) -> Choice | None:
    """Return the cheapest choice within limits that was found; None where none is known to keep them.

    It costs no more than any of `others` that keeps the limits.

    Args:
        tables: costs of all options.
        limits: on sums by quantity, ``memory`` or ``sensitivity``.
        memory_bytes: of a table of the search.
        others: choices to start from as well.
    """
    first = tables.least({"seconds": 1.0}, memory_bytes)
    bound = first.cost if first.bound is None else first.bound
    if first.bound is None and within(tables, first.choice, limits):
        return Choice(first.choice, first.cost, bound)
    met = [first.choice, *others]
    if within(tables, first.choice, limits):
        return _best(tables, limits, met, bound)
    met += _leanest(tables, limits, memory_bytes)
    bound = max(bound, _cut(tables, limits, memory_bytes, met))
    return _best(tables, limits, met, bound)


def _best(
    tables: Tables, limits: Mapping[str, float], met: Sequence[tuple[int, ...]], bound: float
) -> Choice | None:
    """Improve the fastest of the choices that keep the limits."""
    feasible = [choice for choice in dict.fromkeys(met) if within(tables, choice, limits)]
    feasible = feasible or _repaired(tables, limits, list(dict.fromkeys(met)))
    if not feasible:
        return None
    feasible.sort(key=lambda choice: tables.total("seconds", choice))
    improved = [_improved(tables, choice, limits) for choice in feasible[:3]]
    best = min(improved, key=lambda choice: tables.total("seconds", choice))
    seconds = tables.total("seconds", best)
    return Choice(best, seconds, min(bound, seconds))


def leanest(tables: Tables, quantity: str, memory_bytes: int) -> tuple[int, ...]:
    """Return the choice with the least sum of a quantity."""
    return tables.least({quantity: 1.0}, memory_bytes).choice


def _leanest(tables: Tables, limits: Mapping[str, float], memory_bytes: int) -> list[tuple[int, ...]]:
    """Return choices with little of each that is limited, and with little of all, each by its limit."""
    alone = [leanest(tables, quantity, memory_bytes) for quantity in limits]
    together = {quantity: 1 / max(limit, 1e-300) for quantity, limit in limits.items()}
    return [*alone, tables.least(together, memory_bytes).choice]


def _cut(tables: Tables, limits: Mapping[str, float], memory_bytes: int, met: list[tuple[int, ...]]) -> float:
    """Raise the bound by better and better prices; choices met on the way are added to `met`."""
    names = list(limits)
    bound = -np.inf
    planes = [_plane(tables, choice, limits) for choice in met]
    for _ in range(_CUTS if any(np.isfinite(plane).all() for plane in planes) else 0):
        top, prices = _best_prices(planes)
        weights = {"seconds": 1.0} | dict(zip(names, prices, strict=True))
        found = tables.least(weights, memory_bytes)
        least = found.cost if found.bound is None else found.bound
        reached = least - sum(price * limits[name] for name, price in zip(names, prices, strict=True))
        bound = max(bound, reached)
        if found.choice in met or top - bound <= _CLOSE * abs(bound):
            break
        met.append(found.choice)
        planes.append(_plane(tables, found.choice, limits))
    return bound


def _plane(tables: Tables, choice: Sequence[int], limits: Mapping[str, float]) -> tuple[float, ...]:
    """Return the time of a choice, and by how much of each limit it is above it."""
    return tables.total("seconds", choice), *_over(tables, choice, limits).tolist()


def _best_prices(planes: Sequence[tuple[float, ...]]) -> tuple[float, list[float]]:
    """Return the highest bound that the choices met allow, and the prices at which it stands."""
    finite = np.array([plane for plane in planes if np.isfinite(plane).all()])
    scale = np.maximum(np.abs(finite).max(axis=0), 1e-300)
    rows = finite / scale
    # The largest t and prices y >= 0 with t <= seconds + y over, for each choice.
    constraints = np.column_stack([np.ones(len(rows)), -rows[:, 1:]])
    found = linprog(
        [-1.0, *np.zeros(rows.shape[1] - 1)],
        A_ub=constraints,
        b_ub=rows[:, 0],
        bounds=[(None, None), *[(0, 1e9)] * (rows.shape[1] - 1)],
    )
    top, prices = float(found.x[0]) * scale[0], found.x[1:] * scale[0] / scale[1:]
    return top, [float(price) for price in prices]


def within(tables: Tables, choice: Sequence[int], limits: Mapping[str, float]) -> bool:
    """Tell whether a choice keeps the limits."""
    return all(tables.total(name, choice) <= limit * (1 + 1e-12) for name, limit in limits.items())


def _repaired(
    tables: Tables, limits: Mapping[str, float], met: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Return what becomes of choices least above the limits by exchanges, those alone that then keep them."""
    over = np.array([_over(tables, choice, limits) for choice in met])
    units = np.maximum(np.abs(over).max(axis=0), 1e-300)
    first = np.argsort(_excess(over, units), kind="stable")[:_REPAIRS]
    found = [_exchanged(tables, met[i], limits, units) for i in first]
    return [choice for choice in dict.fromkeys(found) if within(tables, choice, limits)]


def _exchanged(
    tables: Tables, choice: tuple[int, ...], limits: Mapping[str, float], units: Reals
) -> tuple[int, ...]:
    """Give one layer, or two, the options least above the limits in all, until nothing helps any more."""
    now, moves = list(choice), _moves(tables)
    changed = True
    while changed and not within(tables, now, limits):
        changed, over = False, _over(tables, now, limits)
        for layers in moves:
            if _lowered(tables, now, layers, limits, units, over):
                changed, over = True, _over(tables, now, limits)
        changed = changed or _lowered_apart(tables, now, limits, units)
    return tuple(now)


def _lowered(
    tables: Tables,
    now: list[int],
    layers: tuple[int, ...],
    limits: Mapping[str, float],
    units: Reals,
    over: Reals,
) -> bool:
    """Choose for one layer or two what is least above the limits beside the others; tell whether it helps.

    ``over`` is by how much the choice is above them now.
    """
    if prod(len(tables.options[i].formats) for i in layers) > _LARGEST_MOVE:
        return False
    at = tuple(now[i] for i in layers)
    own = np.stack([_joint(tables, now, layers, name) for name in limits], axis=-1)
    excess = _excess(over + own - own[at], units)
    best = np.unravel_index(int(np.argmin(excess)), excess.shape)
    if not excess[best] < excess[at] * (1 - 1e-12):
        return False
    for i, option in zip(layers, best, strict=True):
        now[i] = int(option)
    return True


def _lowered_apart(tables: Tables, now: list[int], limits: Mapping[str, float], units: Reals) -> bool:
    """Do the same for the best two layers without an edge, each in the leanest option of some format."""
    layers, options, more = [], [], []
    for i, own in enumerate(tables.options):
        beside = np.stack([tables.beside(i, now, name) for name in limits], axis=-1)
        order = np.lexsort((*beside.T, own.formats))
        leanest = order[np.unique(own.formats[order], return_index=True)[1]]
        layers += [i] * len(leanest)
        options += leanest.tolist()
        more.append(beside[leanest] - beside[now[i]])
    change, over = np.concatenate(more), _over(tables, now, limits)
    excess = _excess(over + change[:, None] + change, units)
    joined = np.eye(len(now), dtype=bool)
    for edge in tables.graph.edges:
        joined[edge.producer, edge.consumer] = joined[edge.consumer, edge.producer] = True
    excess[joined[np.ix_(layers, layers)]] = np.inf
    best = np.unravel_index(int(np.argmin(excess)), excess.shape)
    if not excess[best] < _excess(over, units) * (1 - 1e-12):
        return False
    for k in best:
        now[layers[k]] = options[k]
    return True


def _over(tables: Tables, choice: Sequence[int], limits: Mapping[str, float]) -> Reals:
    """Return by how much a choice is above each limit; below 0 where it is not."""
    return np.array([tables.total(name, choice) - limit for name, limit in limits.items()])


def _excess(over: Reals, units: Reals) -> Reals:
    """Return the sum of what is above the limits, each in its unit."""
    return np.asarray((np.maximum(over, 0) / units).sum(axis=-1))


def _improved(tables: Tables, choice: tuple[int, ...], limits: Mapping[str, float]) -> tuple[int, ...]:
    """Give one layer, or two with an edge, the fastest options within the limits, until nothing changes."""
    now, moves = list(choice), _moves(tables)
    left = {name: limit - tables.total(name, now) for name, limit in limits.items()}
    changed = True
    while changed:
        moved = [_moved(tables, now, layers, left) for layers in moves]
        changed = any(moved)
    return tuple(now)


def _moves(tables: Tables) -> list[tuple[int, ...]]:
    """Return the layers that are given other options together: each alone, and the two of each edge."""
    pairs = {(min(e.producer, e.consumer), max(e.producer, e.consumer)) for e in tables.graph.edges}
    return [*((i,) for i in range(len(tables.layers))), *sorted(pairs)]


def _moved(tables: Tables, now: list[int], layers: tuple[int, ...], left: dict[str, float]) -> bool:
    """Choose for one layer or two what is fastest beside the others; return whether that changed anything.

    What is left of each limit is kept in `left`.
    """
    if prod(len(tables.options[i].formats) for i in layers) > _LARGEST_MOVE:
        return False
    at = tuple(now[i] for i in layers)
    seconds = _joint(tables, now, layers, "seconds")
    allowed = np.ones(seconds.shape, bool)
    more = {name: _joint(tables, now, layers, name) for name in left}
    for name, own in more.items():
        allowed &= own - own[at] <= left[name]
    allowed[at] = True
    within_limits = np.where(allowed, seconds, np.inf)
    best = np.unravel_index(int(np.argmin(within_limits)), seconds.shape)
    if not within_limits[best] < seconds[at] * (1 - 1e-12):
        return False
    for i, option in zip(layers, best, strict=True):
        now[i] = int(option)
    for name, own in more.items():
        left[name] -= float(own[best] - own[at])
    return True


def _joint(tables: Tables, now: Sequence[int], layers: tuple[int, ...], quantity: str) -> Reals:
    """Return what the options of one layer or two cost beside the others."""
    if len(layers) == 1:
        return tables.beside(layers[0], now, quantity)
    i, j = layers
    alone = tables.beside(i, now, quantity, without=j)[:, None] + tables.beside(j, now, quantity, without=i)
    return alone + tables.between(i, j, quantity)
