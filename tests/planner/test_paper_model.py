"""PaSE's own model of costs gives its table of strategies for AlexNet."""

import itertools

import numpy as np
import pytest

from fewbits.planner.networks import BATCH, NETWORKS
from fewbits.planner.networks.builder import Builder, Tensor
from fewbits.planner.paper_model import paper_problem

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


def test_the_table_is_within_three_percent_of_the_minimum() -> None:
    """It splits the batch of conv4 32 ways, where half of that and channels in two cost less."""
    graph = NETWORKS["alexnet"](128)
    problem = paper_problem(graph, 32)
    found, splits = problem.solve()
    assert splits[5] == (16, 2, 1, 1, 1)
    assert problem.cost([TABLE_2[layer.name] for layer in graph.layers]) / found.cost < 1.03


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
    least = min(problem.cost(choice) for choice in itertools.product(*problem.splits))
    assert problem.solve()[0].cost == pytest.approx(least, rel=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_has_a_plan_in_the_papers_model(name: str) -> None:
    found, splits = paper_problem(NETWORKS[name](BATCH[name]), 8).solve()
    assert np.isfinite(found.cost)
    assert found.is_exact
    assert max(int(np.prod(s)) for s in splits) == 8
