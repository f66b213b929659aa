"""PaSE's own model of costs gives its table of strategies for AlexNet."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from fewbits.planner.networks import BATCH, NETWORKS
from fewbits.planner.networks.builder import Builder, Tensor
from fewbits.planner.paper_model import PaperProblem, paper_problem

# Elango 2021, Table II, p = 32; what it does not tell (pools) as the layers beside it.
TABLE_2 = {
    **dict.fromkeys(["conv1", "conv2", "conv3", "conv4"], (32, 1, 1, 1, 1)),
    "conv5": (16, 2, 1, 1, 1),
    **dict.fromkeys(["pool1", "pool2"], (32, 1, 1, 1)),
    "pool5": (16, 1, 1, 1),
    "fc1": (1, 4, 8),
    "fc2": (1, 8, 4),
    "fc3": (1, 4, 8),
    "softmax": (1, 4),
}


def test_alexnet_on_32_devices_is_split_as_in_the_papers_table() -> None:
    graph = NETWORKS["alexnet"](128)
    problem = paper_problem(graph, 32)
    found, splits = problem.solve()
    named = dict(zip((layer.name for layer in graph.layers), splits, strict=True))
    for name in ("conv1", "conv2", "conv3", "conv5", "fc1", "fc2", "fc3", "softmax"):
        assert named[name] == TABLE_2[name], name
    assert found.cost <= problem.cost([TABLE_2[layer.name] for layer in graph.layers])
    assert problem.cost(splits) == pytest.approx(found.cost)


def least(problem: PaperProblem, fixed: dict[int, Sequence[int]]) -> float:
    """The least cost of a chain of layers by recursion along it, with the splits of some of them fixed."""
    best = np.zeros(1)
    for i, (splits, costs) in enumerate(zip(problem.splits, problem.costs, strict=True)):
        allowed = (splits == fixed[i]).all(axis=1) if i in fixed else np.ones(len(splits), bool)
        before = problem.edges[i - 1, i] if i else np.zeros((1, len(splits)))
        best = (best[:, None] + before).min(axis=0) + np.where(allowed, costs, np.inf)
    return float(best.min())


def test_the_table_is_the_minimum_but_for_conv4_whose_own_costs_two_and_a_half_percent_more() -> None:
    """A recursion that shares nothing with the solver says so too: AlexNet is a chain."""
    graph = NETWORKS["alexnet"](128)
    problem = paper_problem(graph, 32)
    assert sorted(problem.edges) == [(i, i + 1) for i in range(len(graph.layers) - 1)]
    found, splits = problem.solve()
    assert graph.layers[5].name == "conv4"
    assert splits[5] == (16, 2, 1, 1, 1)
    assert least(problem, {}) == pytest.approx(found.cost, rel=1e-12)
    theirs = problem.cost([TABLE_2[layer.name] for layer in graph.layers])
    assert least(problem, {5: TABLE_2["conv4"]}) == pytest.approx(theirs, rel=1e-12)
    assert theirs / found.cost == pytest.approx(1.0272, abs=1e-4)


def test_conv4_sends_fewer_words_in_channels_than_the_table_has_it_send() -> None:
    """By hand: less of the gradient of its weights, against sums of its output and more between layers."""
    weights, values, r = 384 * 9 * 384, 128 * 384 * 13 * 13, 10e12 / (16e9 / 8)
    table = 2 * 31 / 32 * weights + 2 * (values / 32 - values / 64)  # to conv5
    ours = 2 * 15 / 16 * weights / 2 + 2 * 1 / 2 * values / 16 + 2 * (values / 64 + values / 32)
    pointwise = 3 * (values / 16 - values / 32)  # the activation of a part that is not split in channels
    assert ours < table
    graph = NETWORKS["alexnet"](128)
    problem = paper_problem(graph, 32)
    split = TABLE_2 | {"conv4": (16, 2, 1, 1, 1)}
    costs = [problem.cost([of[layer.name] for layer in graph.layers]) for of in (TABLE_2, split)]
    assert costs[0] - costs[1] == pytest.approx(r * (table - ours) - pointwise, rel=1e-9)


def test_without_costs_of_sending_batches_are_split_alone_or_not_at_all() -> None:
    """As FLOP for each word go to nothing all splits over 32 devices are the best."""
    graph = NETWORKS["alexnet"](128)
    problem = paper_problem(graph, 32, bandwidth=1e30)
    alike = [(32, *(1 for _ in layer.space[1:])) for layer in graph.layers]
    found, _ = problem.solve()
    assert problem.cost(alike) == pytest.approx(found.cost, rel=1e-6)


def test_a_product_costs_what_the_paper_says() -> None:
    build = Builder()
    build.product("fc", Tensor((64, 128)), 256, bias=False)
    problem = paper_problem(build.graph(), 16, flops=2e9, bandwidth=8e9)  # r = 2 FLOP for each word
    m, n, k, r = 64, 256, 128, 2
    for split, cost in zip(problem.splits[0], problem.costs[0], strict=True):
        pm, pn, pk = map(int, split)
        lm, ln, lk = m / pm, n / pn, k / pk
        sent = [2 * (pk - 1) / pk * lm * ln, 2 * (pn - 1) / pn * lm * lk, 2 * (pm - 1) / pm * ln * lk]
        assert cost == pytest.approx(3 * lm * ln * lk + 3 * lm * ln + r * sum(sent))


def test_the_minimum_is_the_least_of_all_strategies() -> None:
    build = Builder()
    x = build.product("up", Tensor((8, 16)), 32)
    build.loss("loss", build.product("down", x, 8))
    problem = paper_problem(build.graph(), 4)
    cheapest = min(problem.cost(choice) for choice in itertools.product(*problem.splits))
    assert problem.solve()[0].cost == pytest.approx(cheapest, rel=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_has_a_plan_in_the_papers_model(name: str) -> None:
    found, splits = paper_problem(NETWORKS[name](BATCH[name]), 8).solve()
    assert np.isfinite(found.cost)
    assert found.is_exact
    assert max(int(np.prod(s)) for s in splits) == 8
