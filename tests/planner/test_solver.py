"""The least sum of tables equals brute force, and what is not exact says so with a bound that holds."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from fewbits.errors import ArgumentError
from fewbits.planner import elimination, minimize
from fewbits.planner.dominance import undominated

Table = NDArray[np.float64]
Problem = tuple[list[Table], dict[tuple[int, int], Table]]


@pytest.fixture(params=["pruned", "as it is"])
def pruning(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Configurations are pruned in graphs as small as these, or, as it is otherwise, only in large ones."""
    if request.param == "pruned":
        monkeypatch.setattr(elimination, "_CHEAP", 0)
    return str(request.param)


def brute_force(costs: Sequence[Table], edges: Mapping[tuple[int, int], Table]) -> float:
    """The least cost over all choices, one after the other."""
    return min(
        sum(float(c[a]) for c, a in zip(costs, choice, strict=True))
        + sum(float(e[choice[i], choice[j]]) for (i, j), e in edges.items())
        for choice in itertools.product(*(range(len(c)) for c in costs))
    )


def cost_of(problem: Problem, choice: Sequence[int]) -> float:
    """What a choice costs."""
    costs, edges = problem
    alone = sum(float(c[a]) for c, a in zip(costs, choice, strict=True))
    return alone + sum(float(e[choice[i], choice[j]]) for (i, j), e in edges.items())


def random_problem(seed: int) -> Problem:
    """Up to seven vertices of one to four configurations: sparse, dense or disconnected, some forbidden.

    Integers, of which sums are exact and many are equal; half of the problems have structure along which
    configurations dominate each other.
    """
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 8))
    sizes = [int(random.integers(1, 5)) for _ in range(n)]
    forbidden = float(random.choice([0.0, 0.0, 0.15, 0.4]))

    def table(*shape: int) -> Table:
        values = random.integers(-4, 12, shape).astype(float)
        values[random.random(shape) < forbidden] = np.inf
        return values

    density = float(random.choice([0.0, 0.3, 0.6, 1.0]))
    pairs = [(i, j) for i, j in itertools.permutations(range(n), 2) if random.random() < density / 2]
    edges = {(i, j): table(sizes[i], sizes[j]) for i, j in pairs}
    if seed % 2:
        edges = {(i, j): np.add.outer(e[:, 0], e[0]) + (e > 8) for (i, j), e in edges.items()}
    return [table(k) for k in sizes], edges


def mistakes(seeds: range) -> Iterator[int]:
    """Seeds of problems for which the choice is not a least one, or does not cost what is said."""
    for seed in seeds:
        problem = random_problem(seed)
        found = minimize(*problem)
        if found.cost != brute_force(*problem) or cost_of(problem, found.choice) != found.cost:
            yield seed
        assert found.is_exact


@pytest.mark.usefixtures("pruning")
def test_equals_brute_force_on_a_thousand_graphs() -> None:
    assert list(mistakes(range(1000))) == []


def test_the_thousand_graphs_have_every_kind() -> None:
    problems = [random_problem(seed) for seed in range(1000)]
    assert any(len(c) == 1 for costs, _ in problems for c in costs)
    assert sum(not edges and len(costs) > 1 for costs, edges in problems) > 50
    assert sum(brute_force(*p) == np.inf for p in problems[:200]) > 2
    assert any((j, i) in edges for _, edges in problems for i, j in edges)


def _wrong_mean(costs: Table, tables: Sequence[Table]) -> NDArray[np.int64]:
    """A pruning that asks whether another one is better on the mean over neighbours."""
    total = sum((np.where(np.isinf(t), 99, t).mean(axis=1) for t in tables), costs)
    return np.flatnonzero(total <= total.min() + 2)


def _wrong_alone(costs: Table, tables: Sequence[Table]) -> NDArray[np.int64]:
    """A pruning that forgets the neighbours."""
    return np.flatnonzero(costs <= costs.min())


def _wrong_one_neighbour(costs: Table, tables: Sequence[Table]) -> NDArray[np.int64]:
    """A pruning that forgets all neighbours but the first."""
    return undominated(costs, tables[:1])


@pytest.mark.parametrize("wrong", [_wrong_mean, _wrong_alone, _wrong_one_neighbour])
def test_a_wrong_pruning_is_noticed(
    wrong: Callable[..., NDArray[np.int64]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elimination, "undominated", wrong)
    monkeypatch.setattr(elimination, "_CHEAP", 0)
    assert next(mistakes(range(1000)), None) is not None


def test_configurations_compared_one_by_one_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewbits.planner.dominance._AT_ONCE", 0)
    monkeypatch.setattr(elimination, "_CHEAP", 0)
    monkeypatch.setattr(elimination, "_AT_ONCE", 0)
    assert list(mistakes(range(200))) == []


def test_pruning_drops_what_is_never_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elimination, "_CHEAP", 0)
    random = np.random.default_rng(0)
    costs = [random.random(40) for _ in range(12)]
    edges = {(i, i + 1): random.random((40, 40)) * 1e-3 for i in range(11)}
    assert minimize(costs, edges).width <= 4


@pytest.mark.parametrize("seed", range(5))
def test_what_is_dropped_is_never_better_and_what_is_kept_is_now_and_then(seed: int) -> None:
    """By Goldstein's criterion, entry by entry; neighbours have more than a first look sees."""
    random = np.random.default_rng(seed)
    costs, tables = 3 * random.random(24), [random.random((24, 30)) for _ in range(2)]
    for table in tables:
        table[random.random(24) < 0.8, 5] = np.inf  # forbidden with most: most pairs share that
    left = list(undominated(costs, tables))

    def never_worse(a: int, b: int) -> bool:
        most = float(costs[a] - costs[b])
        for table in tables:
            most += max(x - y for x, y in zip(table[a], table[b], strict=True) if not x == y == np.inf)
        return most <= 0

    assert 1 < len(left) < 24
    assert all(any(never_worse(a, b) for a in left) for b in set(range(24)) - set(left))
    assert not any(never_worse(a, b) for a, b in itertools.permutations(left, 2))


@pytest.mark.parametrize("memory_bytes", [1, 200, 2000])
def test_too_little_memory_gives_a_choice_and_a_bound(memory_bytes: int) -> None:
    inexact = 0
    for seed in range(300):
        problem = random_problem(seed)
        least = brute_force(*problem)
        found = minimize(*problem, memory_bytes=memory_bytes)
        assert cost_of(problem, found.choice) == found.cost >= least
        if found.bound is None:
            assert found.cost == least
            continue
        inexact += 1
        assert found.bound <= least
        assert found.needed_bytes is not None
        assert found.needed_bytes > memory_bytes
    assert inexact or memory_bytes == 2000


def test_a_dense_graph_says_how_many_bytes_an_exact_minimum_takes() -> None:
    random = np.random.default_rng(1)
    costs = [random.random(6) for _ in range(9)]
    edges = {(i, j): random.random((6, 6)) for i in range(9) for j in range(i)}
    found = minimize(costs, edges, memory_bytes=10_000)
    assert found.bound is not None
    assert found.needed_bytes is not None
    exact = minimize(costs, edges, memory_bytes=2**30)
    assert exact.bound is None
    assert minimize(costs, edges, memory_bytes=found.needed_bytes).bound is None
    assert found.bound <= exact.cost <= found.cost
    assert exact.cost > 0.5 * found.cost


def test_no_vertices_cost_nothing() -> None:
    assert minimize([], {}).cost == 0


@pytest.mark.parametrize(
    ("costs", "edges", "told"),
    [
        ([[1.0, float("nan")]], {}, r"costs\[0\] has NaN"),
        ([[1.0]], {(0, 1): [[1.0]]}, r"edges\[0, 1\] joins no two of the 1 vertices"),
        ([[1.0], [1.0]], {(0, 0): [[1.0]]}, "joins no two"),
        ([[1.0], [1.0, 2.0]], {(0, 1): [[1.0]]}, r"has the shape \(1, 1\); expected \(1, 2\)"),
        ([[1.0], []], {}, r"costs\[1\] has the shape \(0,\)"),
        ([[1.0], [1.0]], {(0, 1): [[float("nan")]]}, r"edges\[0, 1\] has NaN"),
        ([[-float("inf")]], {}, "infinity"),
    ],
)
def test_bad_tables_are_refused(
    costs: list[list[float]], edges: dict[tuple[int, int], list[list[float]]], told: str
) -> None:
    with pytest.raises(ArgumentError, match=told):
        minimize(costs, edges)


def test_no_memory_is_refused() -> None:
    with pytest.raises(ArgumentError, match="memory_bytes=0; expected a number from 1 up"):
        minimize([[1.0]], {}, memory_bytes=0)
