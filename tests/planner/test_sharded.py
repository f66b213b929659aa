"""Sharded weights: what they cost, and plans with them that run under fully_shard as one process does."""

import copy
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional

from fewbits.errors import ArgumentError
from fewbits.planner import MACHINES, Graph, Machine, MachineLink, Plan, plan
from fewbits.planner.capture import capture
from fewbits.planner.execution import split_model
from fewbits.planner.graph import Operand
from fewbits.planner.layer_cost import layer_costs
from fewbits.planner.networks.builder import Builder, Tensor
from fewbits.planner.options import layer_options
from fewbits.planner.planned import fingerprint
from fewbits.planner.role_bits import role_bits
from fewbits.planner.sharding import shardable
from tests.distributed.team import Team
from tests.fake_group import imagined
from tests.planner import small
from tests.planner.networks import GPT, RNN, Block, mlp, tokens
from tests.planner.test_execution import new_mesh
from tests.planner.traffic import Counted


@pytest.fixture(scope="module")
def four() -> Iterator[Team]:
    team = Team(4)
    yield team
    team.end()


class Square(nn.Module):
    """A sum, not a mean: gradients that are averaged over processes are wrong."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).square().sum()


class Classes(nn.Module):
    """A network with batch norm and classes of which some do not count: no mean of pieces is its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(96, 10)
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.network(x), y, ignore_index=0)


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def by_samples(model: nn.Module, inputs: tuple[torch.Tensor, ...], **pins: Mapping[str, int]) -> Plan:
    """The plan of which each layer with a batch splits it in four, but for those that are pinned."""
    graph = capture(model, inputs)
    split = {x.name: {"b": 4} for x in graph.layers if any(d.name == "b" and d.splittable for d in x.space)}
    return plan(graph, devices=4, memory=math.inf, pins=split | pins, sharded="always")


def check(
    made: Plan,
    model: nn.Module,
    inputs: tuple[torch.Tensor, ...],
    mesh: tuple[int, ...] = (4,),
    not_planned: float = 0.0,
) -> nn.Module:
    """Hold a plan to one process, for two steps of an optimizer, and to its bytes; return what ran."""
    single = copy.deepcopy(model)
    split = made.apply(model, new_mesh(mesh), inputs)
    optimizers = [torch.optim.SGD(m.parameters(), 1e-3, momentum=0.9, foreach=False) for m in (split, single)]
    for step in range(2):
        with warnings.catch_warnings(), Counted() as counted, CommDebugMode() as debug:
            warnings.simplefilter("ignore", UserWarning)  # CommDebugMode's hooks, of inputs without gradients
            warnings.filterwarnings("error", "FSDP2-wrapped module")  # of gradients that would be lost
            loss = split(*inputs)
            loss.backward()
        wanted = single(*inputs)
        wanted.backward()
        torch.testing.assert_close(loss.detach(), wanted.detach(), rtol=1e-5, atol=1e-6)
        assert debug.get_total_counts() == counted.collectives
        assert sum(counted.bytes.values()) == made.sent_bytes + not_planned
        gradients = {name: p.grad for name, p in single.named_parameters()}
        largest = max(float(g.abs().max()) for g in gradients.values())
        for name, p in split.named_parameters():
            assert float((p.grad.full_tensor() - gradients[name]).abs().max()) < 1e-5 * largest, (name, step)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(dict(split.named_buffers()), dict(single.named_buffers()))
    return split


def values(model: nn.Module) -> int:
    """Return how many values of parameters this process holds."""
    return sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in model.parameters())


def _perceptron(rank: int, size: int) -> None:
    """Each process holds its rows of each weight and of its moments, and sends half as much again."""
    torch.manual_seed(1)
    model, inputs = Square(mlp()), (_x(8, 32),)
    every = values(model)
    made = by_samples(model, inputs)
    split = check(made, model, inputs)
    assert values(split) == every / 4
    assert all(isinstance(m, FSDPModule) for m in (split, *split.modules()) if isinstance(m, nn.Linear))
    weights = [layer for layer in made.layers if layer.sharded]
    assert [layer.sent_bytes for layer in weights] == [
        3 * 3 / 4 * 4 * (n * k + n) for n, k in ((64, 32), (64, 64), (16, 64))
    ]
    whole = plan(capture(Square(mlp()), inputs), devices=4, memory=math.inf, pins={
        x.name: x.split for x in made.layers})  # fmt: skip
    assert made.memory_bytes == whole.memory_bytes - 3 / 4 * 16 * every


def _first(rank: int, size: int) -> None:
    """The parameters of the first process count."""
    torch.manual_seed(rank)
    model, inputs = Square(mlp()), (_x(8, 32),)
    torch.manual_seed(0)
    expected = Square(mlp())(*inputs).detach()
    found = by_samples(model, inputs).apply(model, new_mesh((4,)), inputs)(*inputs)
    torch.testing.assert_close(found.detach(), expected, rtol=1e-5, atol=1e-6)


def _classes(rank: int, size: int) -> None:
    """Ten rows on four processes: three each, one on the last; twelve travel."""
    torch.manual_seed(1)
    model, inputs = Classes(), (_x(8, 3, 6, 6), torch.arange(8) % 3)
    split = check(by_samples(model, inputs), model, inputs, not_planned=4 * 2 * 3 / 4)  # how many count
    shape = split.network[4].weight.to_local().shape
    assert shape == ((1 if rank == 3 else 3), 96)


def _one_row(rank: int, size: int) -> None:
    """Of a weight with one row the first of four processes has it, and four travel."""
    torch.manual_seed(1)
    model, inputs = Square(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))), (_x(8, 8),)
    made = by_samples(model, inputs)
    assert [x.dimensions for x in made.layers if x.kind == "product"] == [("b", "n", "k"), ("b", "k")]
    check(made, model, inputs)


def _columns(rank: int, size: int) -> None:
    """Parameters need not lie in one piece."""
    torch.manual_seed(1)
    model, inputs = Square(nn.Sequential(nn.Linear(8, 8))), (_x(8, 8),)
    model.model[0].weight = nn.Parameter(model.model[0].weight.detach().t())
    check(by_samples(model, inputs), model, inputs)


def _transformer(rank: int, size: int) -> None:
    """A cap on memory has weights sharded, of some layers or of all, found in a file."""
    torch.manual_seed(1)
    model = GPT(32, 64, 4, 2, 8, fused=False)
    inputs = tokens(8, 8, 32), tokens(8, 8, 32)
    graph = capture(model, inputs)
    pins = {x.name: {"b": 4} for x in graph.layers if any(d.name == "b" for d in x.space)}
    machine = replace(MACHINES["a100"], links=(MachineLink(100.0),))  # without latency: bytes alone count
    free, capped = (
        plan(graph, devices=4, machine=machine, memory=memory, pins=pins, sharded="allowed")
        for memory in (math.inf, 1e6)
    )
    assert not any(x.sharded for x in free.layers)
    assert 0 < sum(x.sharded for x in capped.layers) < sum(bool(x.sent_bytes) for x in free.layers)
    with tempfile.TemporaryDirectory() as folder:
        capped.save(f"{folder}/plan.json")
        made = Plan.load(f"{folder}/plan.json")
    assert made == capped
    check(made, model, inputs, not_planned=4 * 2 * 3 / 4)


def _mixed(rank: int, size: int) -> None:
    """Two products split by features, over a mesh of two axes, and all others sharded."""
    torch.manual_seed(1)
    model, inputs = Square(Block(32, 4, fused=False)), (_x(4, 8, 32),)
    made = by_samples(model, inputs, **{"model.up": {"n": 4}, "model.down": {"k": 4}})
    split = check(made, model, inputs, (2, 2))
    assert [x.name for x in made.layers if not x.sharded and x.kind == "product"] == [
        "model.up",
        "model.down",
    ]
    assert not isinstance(split.model.up, FSDPModule)
    assert isinstance(split.model.proj, FSDPModule)


def _recurrent(rank: int, size: int) -> None:
    torch.manual_seed(1)
    model, inputs = Square(RNN(64, 8)), (tokens(8, 5, 64),)
    check(by_samples(model, inputs), model, inputs)


@pytest.mark.parametrize(
    "work", [_perceptron, _first, _classes, _one_row, _columns, _transformer, _mixed, _recurrent]
)
def test_sharded_plans_do_what_one_process_does_and_send_what_is_predicted(
    four: Team, work: Callable[[int, int], None]
) -> None:
    four.run(work)


@pytest.mark.parametrize("work", [_perceptron, _mixed])
def test_averaged_gradients_of_pieces_show(four: Team, work: Callable[[int, int], None]) -> None:
    """Negative control: what fully_shard does by itself is not the gradient of the whole batch's loss."""
    with pytest.raises(AssertionError, match="weight"):
        four.run(partial(_averaged, work))


def _averaged(work: Callable[[int, int], None], rank: int, size: int) -> None:
    with mock.patch.object(FSDPModule, "set_gradient_divide_factor"):
        work(rank, size)


class Own(nn.Module):
    """A module that reads its two parameters in two operations."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + self.bias


class Twice(nn.Module):
    """A module whose one weight a layer reads twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + self.weight


class Turned(nn.Module):
    """A module whose weight is read as a view."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.t()


class Halves(nn.Module):
    """A module of whose weight a layer reads a part."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight[:8])


class Apart(nn.Module):
    """A module whose parameters are of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(8, 8)), nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


def test_weights_that_cannot_be_sharded_are_refused_and_nothing_is_changed() -> None:
    inputs = (_x(8, 8),)

    def refused(match: str, model: nn.Module, sharded: str, split: Mapping[str, int]) -> None:
        with pytest.raises(ArgumentError, match=match):
            split_model(model, {sharded: split}, mesh, inputs, sharded=[sharded])
        assert not any(isinstance(p, DTensor) for p in model.parameters())
        assert not any(isinstance(m, FSDPModule) for m in model.modules())

    frozen = nn.Sequential(nn.Linear(8, 8)).requires_grad_(False)
    tied = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    tied[1].weight = tied[0].weight
    with imagined(4):
        mesh = new_mesh((2, 2))
        refused("all of them have to be trained, and its split", frozen, "0", {"b": 4})
        refused("share the samples out to all 4 devices", nn.Sequential(nn.Linear(8, 8)), "0", {"b": 2})
        refused("share the samples out to all 4 devices", nn.Sequential(nn.Linear(8, 8)), "0", {"n": 4})
        apart = nn.Sequential(Apart())
        refused("0.bias of the same module is not of the layer", apart, "0", {"m": 4})
        refused("several operations read the parameters", nn.Sequential(Own()), "0", {"b": 4})
        refused("it is the model's own", nn.Linear(8, 8), "Linear", {"b": 4})
        refused("read it whole, once", tied, "0", {"b": 4})
    for match, sharded in (("share the samples out", frozen), ("it is 1.weight as well", tied)):
        made = plan(sharded, inputs, devices=4, memory=math.inf, sharded="always", pins={"0": {"b": 4}})
        assert not any(layer.sharded for layer in made.layers), match


def _tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gathered": lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8, bias=False)),
    "the model's own": lambda: nn.Linear(8, 8),
    "two operations": lambda: nn.Sequential(Own(), nn.Linear(8, 8)),
    "twice": lambda: nn.Sequential(Twice(), nn.Linear(8, 8)),
    "view": lambda: nn.Sequential(Turned(), nn.Linear(8, 8)),
    "part": lambda: nn.Sequential(Halves(), nn.Linear(8, 8)),
    "two layers": lambda: nn.Sequential(Apart(), nn.Linear(8, 8)),
    "two calls": lambda: nn.Sequential(*[nn.Linear(8, 8)] * 2, nn.Linear(8, 8)),
    "two names": _tied,
}


@pytest.mark.parametrize("name", MODELS)
def test_what_a_plan_has_sharded_is_what_runs_sharded(name: str) -> None:
    """Of layers that could be sharded by their splits alone, the others are refused when they run."""
    inputs = (_x(8, 8),)
    model = MODELS[name]()
    graph = capture(model, inputs)
    pins = {x.name: {x.space[0].name: 4} for x in graph.layers}
    made = plan(model, inputs, devices=4, memory=math.inf, sharded="always", pins=pins, executable=True)
    sharded = [layer.name for layer in made.layers if layer.sharded]
    with_weights = [layer.name for layer in graph.layers if layer.weights]
    last = () if name == "the model's own" else (with_weights[-1],)
    assert sharded == (with_weights if name == "gathered" else list(last))
    with imagined(4):
        made.apply(MODELS[name](), new_mesh((4,)), inputs)
        for other in set(with_weights) - set(sharded):
            with pytest.raises(ArgumentError, match=f"the weights of {other} cannot be sharded"):
                split_model(model, pins, new_mesh((4,)), inputs, sharded=[other])


def test_reasons_not_to_shard_leave_stored_plans_as_they_are() -> None:
    graph = capture(nn.Linear(8, 8), (_x(8, 8),))
    alike = replace(graph, layers=tuple(replace(layer, unsharded="") for layer in graph.layers))
    assert graph.layers[0].unsharded
    assert fingerprint(graph) == fingerprint(alike)


def test_a_sharded_weight_is_gathered_twice_and_its_gradient_scattered() -> None:
    """Of 10 rows on four devices twelve are held and sent; within nodes of two first, then between them."""
    build = Builder()
    build.product("fc", Tensor((8, 16)), 10)
    machine = Machine("m", {"fp32": 1.0}, (MachineLink(8.0, 1.0), MachineLink(2.0, 10.0)), 1.0, 2)
    splits, roles = np.array([(4, 1, 1), (4, 1, 1)]), role_bits("fp8-lm", "fp32")
    sharded = np.array([False, True])
    costs = layer_costs(build.layers[0], splits, [False], False, roles, machine, sharded)
    own, rows = 16 * 10 + 10, 16 * 12 + 12
    gathered = 2 * roles.frozen / 8 * rows + 4 * rows  # twice as it is held, and the gradient by the codec
    assert costs.sent == pytest.approx([2 * 3 / 4 * 4 * own, 3 / 4 * gathered])
    assert costs.link[1] == pytest.approx(
        1e-9 * gathered / 2 + 4e-9 * gathered / 4 + 3e-6 + 30e-6  # three messages on each of the two levels
    )
    assert costs.memory[0] - costs.memory[1] == pytest.approx(roles.parameter / 8 * (own - rows / 4))
    assert costs.compute[0] == costs.compute[1]


def test_weights_are_sharded_where_all_devices_need_all_of_them() -> None:
    build = Builder()
    build.product("fc", Tensor((8, 12)), 16)
    layer = build.layers[0]
    splits = np.array([(4, 1, 1), (2, 2, 1), (2, 1, 1), (1, 4, 1), (1, 1, 4), (1, 1, 1)])
    assert shardable(layer, splits, 4).tolist() == [True, *[False] * 5]
    frozen = replace(layer, weights=(replace(layer.weights[0], trained=False), layer.weights[1]))
    assert not shardable(frozen, splits, 4).any()
    rowless = replace(layer, weights=(*layer.weights, Operand("scale", (), ())))  # there is nothing to deal
    assert not shardable(rowless, splits, 4).any()
    assert not shardable(layer, splits[-1:], 1).any()


def test_layers_that_differ_in_their_outputs_alone_have_options_of_their_own() -> None:
    build = Builder()
    build.product("whole", Tensor((8, 4, 12)), 16)
    whole = build.layers[0]
    of_samples = replace(whole, name="summed", output=replace(whole.output, shape=(8, 16), axes=("b", "n")))
    for layers in ((whole, of_samples), (of_samples, whole)):
        own = layer_options(Graph(layers, ()), 4, 1, {}, {}, "allowed")
        for layer, found in zip(layers, own, strict=True):
            can = shardable(layer, found.splits[~found.sharded], 4)
            assert found.splits[found.sharded].tolist() == found.splits[~found.sharded][can].tolist()


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.8])
@pytest.mark.parametrize("name", ["perceptron", "branches"])
def test_a_plan_that_may_shard_is_the_best_within_a_cap(name: str, share: float) -> None:
    graph = small.GRAPHS[name]()
    found = small.small_tables(graph, 2, small.SLOW, sharded="allowed")
    choices = list(small.all_choices(found))
    memory = np.array([found.total("memory", choice) for choice in choices])
    seconds = np.array([found.total("seconds", choice) for choice in choices])
    cap = memory.min() + share * (memory[seconds.argmin()] - memory.min())
    best = seconds[memory <= cap * (1 + 1e-12)].min()
    made = plan(graph, devices=2, machine=small.SLOW, memory=cap, sharded="allowed", compare=True)
    assert made.memory_bytes <= cap * (1 + 1e-12)
    assert made.bound <= best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= made.seconds <= best * 1.1
    assert all(made.seconds <= s.seconds * (1 + 1e-12) for s in made.strategies if s.fits)
    assert "sharded data parallel" in {s.name for s in made.strategies}


def test_sharding_fits_a_model_into_less_memory_and_is_chosen_only_where_it_may_be() -> None:
    graph, options = small.perceptron(), {"devices": 4, "machine": small.SLOW, "forbid": {"*": ["n", "k"]}}
    whole = plan(graph, memory=math.inf, **options)
    with pytest.raises(ArgumentError, match="too little"):
        plan(graph, memory=0.9 * whole.memory_bytes, **options)
    made = plan(graph, memory=0.9 * whole.memory_bytes, sharded="allowed", **options)
    assert any(layer.sharded for layer in made.layers)
    assert made.seconds > whole.seconds
    always = plan(graph, memory=math.inf, sharded="always", **options)
    by_samples = {layer.name for layer in always.layers if layer.kind == "product" and layer.split[0] == 4}
    assert {layer.name for layer in always.layers if layer.sharded} == by_samples
    assert plan(graph, memory=math.inf, devices=4, machine=small.SLOW, reuse=made).layers == tuple(
        replace(x, runner_up=x.split, runner_up_seconds=math.inf) for x in made.layers
    )
    with pytest.raises(ArgumentError, match="leave `pins`, `forbid` and `sharded` out"):
        plan(graph, devices=4, reuse=made, sharded="always")
    with pytest.raises(ArgumentError, match="sharded='yes'; expected one of never, allowed, always"):
        plan(graph, devices=4, sharded="yes")
    broken = replace(made, layers=tuple(replace(x, sharded=x.name == "loss") for x in made.layers))
    with pytest.raises(ArgumentError, match="has the weights of 'loss' sharded, which its split does not"):
        plan(graph, devices=4, machine=small.SLOW, reuse=broken)
