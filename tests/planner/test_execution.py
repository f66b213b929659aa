"""Plans that run on eight processes: the loss, the gradients and the bytes, and mistakes that show."""

import copy
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, _redistribute
from torch.distributed.tensor.debug import CommDebugMode, _clear_sharding_prop_cache
from torch.nn import functional

from fewbits.errors import ArgumentError
from fewbits.nn import prepare
from fewbits.planner import Plan, plan
from fewbits.planner.capture import capture
from fewbits.planner.execution import executable, program, split_model
from fewbits.planner.execution.layout import lay_out
from fewbits.planner.graph import Dimension, Graph, Layer, Operand
from tests.distributed.team import Team
from tests.fake_group import imagined
from tests.planner.networks import GPT, RNN, Block, mlp, tokens
from tests.planner.traffic import Counted, predicted

MESH = (2, 2, 2)
# Where only values are compared: PyTorch's search for ways to split grows with the power of the axes.
SQUARE = (2, 2)
Splits = Mapping[str, Mapping[str, int]]


@pytest.fixture(scope="module")
def eight() -> Iterator[Team]:
    team = Team(8)
    yield team
    team.end()


@pytest.fixture(scope="module")
def four() -> Iterator[Team]:
    team = Team(4)
    yield team
    team.end()


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def by_batch(graph: Graph, parts: int) -> dict[str, dict[str, int]]:
    """Split each layer's batch where it has one that can be."""
    found = {}
    for layer in graph.layers:
        split = [parts if d.name == "b" else 1 for d in layer.space]
        if max(split, default=1) > 1 and executable(layer, split):
            found[layer.name] = {"b": parts}
    return found


class Square(nn.Module):
    """A loss for a model that has none."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).square().mean()


def _step(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = model(*inputs)
    loss.backward()
    gradients = {
        name: p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
        for name, p in model.named_parameters()
    }
    return loss.detach(), gradients


def _worst(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> float:
    largest = max(float(g.abs().max()) for g in wanted.values())
    assert found.keys() == wanted.keys()
    return max(float((found[n] - g).abs().max()) for n, g in wanted.items()) / largest


def planned(graph: Graph, splits: Splits) -> Plan:
    """The plan that has these splits and no others."""
    pins = {}
    for layer in graph.layers:
        pins[layer.name] = [splits.get(layer.name, {}).get(d.name, 1) for d in layer.space]
    return plan(graph, devices=8, machine="h100", memory=math.inf, pins=pins)


def new_mesh(mesh: tuple[int, ...] = MESH) -> DeviceMesh:
    """A mesh of its own: what PyTorch keeps of an equal one may name groups that are gone."""
    _redistribute._gen_transform_infos.cache_clear()
    _redistribute.clear_redistribute_planner_cache()
    _clear_sharding_prop_cache()
    return init_device_mesh("cpu", mesh)


def _together() -> bool:
    """Whether other processes are there, or only imagined, which changes values and no bytes."""
    return distributed.get_backend() != "fake"


def check(
    make: Callable[[], nn.Module],
    inputs: tuple[torch.Tensor, ...],
    splits: Splits,
    bytes_too: bool = True,
    mesh: tuple[int, ...] = MESH,
) -> None:
    """Hold a split model to one process: loss, gradients, and what is sent to the formula."""
    torch.manual_seed(1)
    model = make()
    single = copy.deepcopy(model)
    loss, gradients = _step(single, inputs)
    graph = capture(model, inputs) if bytes_too else None
    assert split_model(model, splits, new_mesh(mesh), inputs) is model
    with warnings.catch_warnings(), Counted() as counted, CommDebugMode() as debug:
        warnings.simplefilter("ignore", UserWarning)  # CommDebugMode's hooks, of inputs without gradients
        y = model(*inputs)
        y.backward()
    found = {name: p.grad.full_tensor() for name, p in model.named_parameters()}
    if _together():
        torch.testing.assert_close(y.detach(), loss, rtol=1e-5, atol=1e-6)
        assert _worst(found, gradients) < 1e-5
    assert debug.get_total_counts() == counted.collectives
    if graph is not None:
        expected = predicted(graph, lay_out(graph, splits, MESH))
        assert counted.bytes == expected, (counted.bytes, expected)
        made = planned(graph, splits)
        count = 4 * sum(name.startswith("cross_entropy") for name in splits)  # of targets: one value
        assert made.sent_bytes == sum(counted.bytes.values()) - count
        others = [{**splits, name: {}} for name in splits]  # negative control: the bytes of other plans
        assert any(predicted(graph, lay_out(graph, other, MESH)) != expected for other in others)


MLP_SPLITS = {"0": {"b": 2, "n": 4}, "2": {"b": 2, "k": 4}, "4": {"b": 2, "n": 2, "k": 2}}


def inside(splits: Splits) -> Splits:
    return {f"model.{name}": split for name, split in splits.items()}


def _mlp(rank: int, size: int) -> None:
    splits = inside(MLP_SPLITS)
    check(lambda: Square(mlp()), (_x(8, 32),), {**splits, "mean": {"b": 2}})
    columns = inside({"0": {"b": 2, "n": 4}, "2": {"b": 2, "n": 4}, "4": {"b": 2, "k": 4}})  # scattered sums
    check(lambda: Square(mlp()), (_x(8, 32),), {**columns, "mean": {"b": 2}})
    check(lambda: Square(mlp()), (_x(8, 32),), {**splits, "mean": {"b": 4, "d": 2}}, bytes_too=False)


def block_splits(graph: Graph) -> dict[str, dict[str, int]]:
    """Tensor parallelism over four in each of two parts of the batch."""
    columns = {name: {"b": 2, "n": 4} for name in ("q", "k", "v", "up")}
    rows = {name: {"b": 2, "k": 4} for name in ("proj", "down")}
    heads = {"scaled_dot_product_attention": {"b": 2, "h": 4}}
    return {**by_batch(graph, 2), **inside({**columns, **rows, **heads})}


def _block(rank: int, size: int) -> None:
    def make() -> nn.Module:
        return Square(Block(32, 4, fused=False))

    inputs = (_x(4, 8, 32),)
    check(make, inputs, block_splits(capture(make(), inputs)))


class Tokens(nn.Module):
    """Embedding, norm, head and loss; the head may be the embedding."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(64, 16, padding_idx=5), nn.LayerNorm(16)
        self.head = nn.Linear(16, 64, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.norm(self.tokens(x)))
        return functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=5)


def _embedding(rank: int, size: int) -> None:
    inputs = tokens(8, 6, 64), tokens(8, 6, 64)
    splits = {"tokens": {"v": 8}, "head": {"n": 4}, "cross_entropy_loss": {"b": 2}}
    check(Tokens, inputs, splits)
    mixed = {"tokens": {"v": 4, "d": 2}, "norm": {"b": 4}, "head": {"b": 4, "k": 2}}
    check(Tokens, inputs, mixed, bytes_too=False)
    check(lambda: Tokens(tied=True), inputs, {"tokens": {"v": 4}, "head": {"n": 2}}, bytes_too=False)


class Heads(nn.Module):
    """An operation on a view that has fewer heads than its product may have parts."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = nn.Linear(16, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.columns(x).view(8, 4, 2, 16).transpose(1, 2)
        return (torch.cat([-y[..., 8:], y[..., :8]], -1) * torch.arange(16) + y).square().mean()


class Along(nn.Linear):
    """Norms and other values of axes, some of the flattened tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        added = torch.addmm(self.bias, y, self.weight, beta=0.5, alpha=2.0)
        norms = y.norm(dim=1).mean() + torch.linalg.vector_norm(y, 2.0, dim=-1).sum()
        return norms + functional.normalize(added).var(True) + (torch.roll(y, 1) * x).mean() + y.std(0).sum()


class Losses(nn.Linear):
    """Losses value by value, some with weights that all samples share."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, target = super().forward(x), x.sigmoid()
        total = functional.mse_loss(y, x) + 3 * functional.l1_loss(y, x, reduction="sum")
        total = total + functional.smooth_l1_loss(y, x) + functional.huber_loss(y, x, reduction="none").sum()
        total = total + functional.binary_cross_entropy(y.sigmoid(), target)
        weight = torch.arange(1.0, 17)
        total = total + functional.binary_cross_entropy_with_logits(y, target, weight, pos_weight=2 * weight)
        return total + functional.kl_div(y, target, reduction="batchmean") + functional.kl_div(y, target)


class Router(nn.Linear):
    """What mixtures of experts do: the largest shares, divided by their sum in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares, places = super().forward(x).softmax(-1).topk(2, -1)
        shares /= shares.sum(-1, keepdim=True)
        return (shares * x.gather(-1, places)).square().mean()


class Repeated(nn.Linear):
    """Rows and columns that stand several times, and rows each as often as it is told."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        rows = y.repeat_interleave(2, 0, output_size=2 * len(y))
        told = y.repeat_interleave(torch.arange(len(y)), 0, output_size=len(y) * (len(y) - 1) // 2)
        return rows.square().mean() + y.repeat_interleave(3, -1).sum(0).square().sum() + told.square().sum()


class Truncated(nn.Linear):
    """Values without their last 16 bits, and a gradient as if they had them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        exact = y.detach()
        short = (exact.view(torch.int32) & -65536).view(torch.float32)
        halves = exact.view(torch.int16).float()  # two for each value
        return ((y + (short - exact)) * halves[:, 1::2].sign()).square().mean() + halves.mean() / 2**15


class Cross(nn.Module):
    """Attention whose products have slices of one parameter."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(*sizes)

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.attention(q, k, k.square())[0]
        return y.square().mean()


def _along(rank: int, size: int) -> None:
    inputs: tuple[torch.Tensor, ...] = (_x(8, 16),)
    graph = capture(Along(16, 16), inputs)
    first, added = (layer.name for layer in graph.layers if layer.kind == "product")
    splits = {**by_batch(graph, 2), first: {"n": 2, "k": 2}, added: {"k": 2, "n": 2}}
    check(lambda: Along(16, 16), inputs, splits, bytes_too=False, mesh=SQUARE)
    inputs = (_x(8, 16),)
    graph = capture(Losses(16, 16), inputs)
    assert graph.warnings == ()
    names = [x.name for x in graph.layers if [d.name for d in x.space] == ["b", "d"]]
    assert len(names) >= 8
    splits = {name: {"b": 2, "d": 2} for name in names}
    check(lambda: Losses(16, 16), inputs, splits, bytes_too=False, mesh=SQUARE)
    inputs = (_x(8, 16),)
    splits = {**by_batch(capture(Truncated(16, 8), inputs), 2), "Truncated": {"b": 2, "n": 2}}
    check(lambda: Truncated(16, 8), inputs, splits, bytes_too=False, mesh=SQUARE)
    splits = {"Repeated": {"b": 2, "n": 2}}
    check(lambda: Repeated(16, 8), inputs, splits, bytes_too=False, mesh=SQUARE)
    splits = by_batch(capture(Router(16, 8), inputs), 2)
    assert len(splits) >= 4
    check(lambda: Router(16, 8), inputs, splits, bytes_too=False, mesh=SQUARE)
    inputs = (_x(8, 4, 16), _x(6, 4, 16))
    products = [x for x in capture(Cross(16, 4), inputs).layers if len(x.weights) == 2]
    assert len(products) == 4
    splits = {x.name: {"n": 2, "k": 2} for x in products}
    check(lambda: Cross(16, 4), inputs, splits, bytes_too=False, mesh=SQUARE)


def _others(rank: int, size: int) -> None:
    def convolutions() -> nn.Module:
        network = nn.Sequential(
            nn.Conv2d(4, 8, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, groups=8),
            nn.Conv2d(16, 4, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 10),
        )
        return Square(network)

    splits = inside({"0": {"n": 2, "c": 2}, "3": {"b": 2, "g": 2}, "4": {"c": 2, "n": 2}, "7": {"k": 2}})
    check(convolutions, (_x(4, 4, 12, 12),), splits, bytes_too=False, mesh=SQUARE)
    for n in (2, 4):
        check(Heads, (_x(8, 4, 16),), {"columns": {"n": n}}, bytes_too=False, mesh=SQUARE)
    transposed = nn.Sequential(nn.ConvTranspose2d(4, 8, 3), nn.ConvTranspose2d(8, 4, 3, groups=4))
    splits = inside({"0": {"c": 2, "b": 2}, "1": {"g": 4}})
    check(lambda: Square(copy.deepcopy(transposed)), (_x(4, 4, 5, 5),), splits, bytes_too=False, mesh=SQUARE)
    inputs: tuple[torch.Tensor, ...] = (tokens(8, 5, 64),)
    rnn = Square(RNN(64, 8))
    check(lambda: copy.deepcopy(rnn), inputs, by_batch(capture(rnn, inputs), 4), bytes_too=False, mesh=SQUARE)
    inputs = tokens(4, 16, 64), tokens(4, 16, 64)
    model = GPT(64, 32, 4, 1, 16)  # one product for queries, keys and values
    splits = by_batch(capture(model, inputs), 2)
    splits |= {"blocks.0.qkv": {"n": 4}, "blocks.0.add": {"s": 4}, "blocks.0.proj": {"s": 2, "n": 2}}
    splits |= {"blocks.0.scaled_dot_product_attention": {"h": 4}, "head": {"b": 2, "n": 2}}
    check(lambda: GPT(64, 32, 4, 1, 16), inputs, splits, bytes_too=False, mesh=SQUARE)


def _normalized(rank: int, size: int) -> None:
    """Data parallelism with batch norm: moments of the whole batch, running ones too."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 3))
    inputs, model = (_x(16, 4, 8, 8),), Square(network)
    splits = by_batch(capture(model, inputs), 8)
    check(lambda: copy.deepcopy(model), inputs, splits)
    for taken in (splits, {"model.0": {"n": 8}}):
        single, split = copy.deepcopy(model), copy.deepcopy(model)
        single(*inputs)
        split_model(split, taken, new_mesh(), inputs)(*inputs)
        if _together():
            torch.testing.assert_close(dict(split.named_buffers()), dict(single.named_buffers()))


def _searched(rank: int, size: int) -> None:
    """What the first process finds for a slow link and a little memory runs in all, from a file."""
    inputs = tokens(8, 16, 128), tokens(8, 16, 128)
    torch.manual_seed(1)
    model = GPT(128, 64, 4, 2, 16, fused=False)
    loss, gradients = _step(copy.deepcopy(model), inputs)
    mesh = init_device_mesh("cpu", MESH, mesh_dim_names=("x", "y", "z"))
    with tempfile.TemporaryDirectory() as folder:
        path = [f"{folder}/plan.json"]
        if rank == 0:
            graph = capture(model, inputs)
            free = plan(graph, devices=8, machine="a100", memory=math.inf)
            made = plan(graph, devices=8, machine="a100", memory=0.8 * free.memory_bytes)
            pieces = [zip(layer.dimensions, layer.split, strict=True) for layer in made.layers]
            assert any(n > 1 and d in "nkv" for own in pieces for d, n in own)  # more than data parallel
            made.save(path[0])
        distributed.broadcast_object_list(path)
        made = Plan.load(path[0])
        distributed.barrier()  # the first one's folder goes
    found_loss, found = _step(made.apply(model, mesh, inputs), inputs)
    torch.testing.assert_close(found_loss, loss, rtol=1e-5, atol=1e-6)
    assert _worst(found, gradients) < 1e-5


def _dropout(rank: int, size: int) -> None:
    """Each piece has a mask of its own, shared by processes with that piece, and each step has new ones."""
    torch.manual_seed(rank)  # the first process's generator counts
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.25))
    nn.init.eye_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    mesh = new_mesh()
    model = split_model(model, {"0": {"b": 2, "n": 2}}, mesh, (torch.ones(32, 64),))
    first, second = (model(torch.ones(32, 64)).full_tensor() for _ in range(2))
    assert set(first.unique().tolist()) == {0.0, float(torch.tensor(1.0) / 0.75)}
    assert 0.15 < float((first == 0).float().mean()) < 0.35
    pieces = [x for rows in first.chunk(2) for x in rows.chunk(2, 1)]
    assert not any(torch.equal(a, b) for i, a in enumerate(pieces) for b in pieces[:i])
    assert not torch.equal(first, second)
    everyone = [torch.empty_like(first) for _ in range(size)]
    distributed.all_gather(everyone, first)
    assert all(torch.equal(first, other) for other in everyone)
    model(torch.ones(32, 64)).full_tensor().sum().backward()
    with pytest.raises(ArgumentError, match="planned for training and is set to evaluation"):
        model.eval()(torch.ones(32, 64))


def _mistakes(rank: int, size: int) -> None:
    """A sum that is left out shows in the gradients; a plan that does not fit is refused."""
    torch.manual_seed(1)
    model, inputs, mesh = Square(mlp()), (_x(8, 32),), new_mesh()
    _, gradients = _step(copy.deepcopy(model), inputs)
    wrong = split_model(copy.deepcopy(model), inside(MLP_SPLITS), mesh, inputs)
    expected = predicted(capture(model, inputs), lay_out(capture(model, inputs), inside(MLP_SPLITS), MESH))
    with mock.patch.object(program, "summed", return_value=(False,) * 3), Counted() as counted:
        wrong(*inputs).backward()
    found = {name: p.grad.full_tensor() for name, p in wrong.named_parameters()}
    assert _worst(found, gradients) > 0.1
    assert counted.bytes["all_reduce"] < expected["all_reduce"]


@pytest.mark.parametrize("work", [_mlp, _block, _embedding, _normalized, _searched, _dropout, _mistakes])
def test_eight_processes_do_what_one_does_and_send_what_is_predicted(
    eight: Team, work: Callable[[int, int], None]
) -> None:
    eight.run(work)


@pytest.mark.parametrize("work", [_others, _along])
def test_four_processes_do_what_one_does(four: Team, work: Callable[[int, int], None]) -> None:
    four.run(work)


@pytest.mark.parametrize("work", [_mlp, _block, _embedding, _normalized])
def test_one_process_sends_as_much_while_the_others_are_imagined(work: Callable[[int, int], None]) -> None:
    with imagined(8):
        work(0, 8)


def test_one_of_four_asks_torch_for_what_it_sends() -> None:
    with imagined(4):
        _others(0, 4)


def _layer(kind: str, dims: Mapping[str, int], **more: Any) -> Layer:
    space = tuple(Dimension(name, n) for name, n in dims.items())
    return Layer("layer", kind, space, 1.0, (), (), Operand("output", (), ()), **more)


def test_what_does_not_run_is_not_executable() -> None:
    product = _layer("product", {"b": 8, "n": 6})
    assert executable(product, (4, 1))
    assert executable(product, (1, 1))
    assert not executable(product, (1, 4))  # 6 by 4
    assert not executable(_layer("unknown", {"b": 8}), (2,))
    batch_norm = capture(nn.BatchNorm1d(4), (torch.zeros(8, 4),)).layers[0]
    assert executable(batch_norm, (2, 1))
    assert not executable(batch_norm, (1, 2))
    first, second = capture(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.LayerNorm(6)), (torch.zeros(2, 3, 8, 8),)
    ).layers
    assert [d.name for d in first.space] == ["b", "n", "h", "w", "c", "r", "s"]
    assert executable(first, (2, 2, 1, 1, 1, 1, 1))
    assert not executable(first, (1, 1, 2, 1, 1, 1, 1))
    assert not executable(second, tuple(2 if d.name == "d" else 1 for d in second.space))


@pytest.fixture
def mesh() -> Iterator[Any]:
    with imagined(8):
        yield init_device_mesh("cpu", MESH, mesh_dim_names=("x", "y", "z"))


def test_a_plan_that_does_not_fit_is_refused_and_changes_nothing(mesh: Any) -> None:
    inputs = (_x(8, 32),)

    def refused(match: str, splits: Splits, model: nn.Module | None = None, x: Any = None) -> None:
        given = mlp() if model is None else model
        with pytest.raises(ArgumentError, match=match):
            split_model(given, splits, mesh, inputs if x is None else x)
        assert not any(isinstance(p, DTensor) for p in given.parameters())

    refused(r"splits '7', which Sequential does not have", {"7": {"b": 2}})
    refused(r"splits 'h' of 0, whose dimensions are b, n, k", {"0": {"h": 2}})
    refused(r"mesh of 2 x 2 x 2 cannot make: each number of parts", {"0": {"b": 8, "n": 2}})
    refused(r"32 along k cannot be shared out evenly to 3", {"0": {"k": 3}})
    refused(r"0 is split {'b': 0}; expected whole numbers from 1 up by dimension", {"0": {"b": 0}})
    refused(r"0 is split {'b': '2'}; expected", {"0": {"b": "2"}})
    refused(r"0 is split 2; expected", {"0": 2})
    refused(r"depend on each other along d; ask for", {"LayerNorm": {"d": 2}}, nn.LayerNorm(32))
    drawing = nn.Sequential(nn.Linear(32, 32), nn.RReLU())
    refused(r"rrelu draws values at random", {"0": {"b": 2}}, drawing)
    table, indices = nn.Sequential(nn.Embedding(32, 8, sparse=True)), (torch.zeros(8, dtype=torch.int64),)
    refused(r"embedding has a sparse gradient", {"0": {"b": 2}}, table, indices)


def test_a_plan_is_for_its_model_and_its_mesh(mesh: Any) -> None:
    inputs = (_x(8, 32),)
    made = plan(mlp(), inputs, devices=8, machine="h100", memory=math.inf)
    with pytest.raises(ArgumentError, match=r"for another model, .* first layers that differ"):
        made.apply(nn.Sequential(nn.Flatten(), *mlp()), mesh, inputs)
    with pytest.raises(ArgumentError, match=r"for 8 devices and 4 were asked for"):
        made.apply(mlp(), mesh["x", "y"], inputs)
    with pytest.raises(ArgumentError, match=r"for another model"):
        made.apply(mlp(), mesh, (_x(4, 32),))
    model = mlp()
    assert made.apply(model, mesh, inputs) is model


def test_a_split_model_takes_the_inputs_of_its_plan_only(mesh: Any) -> None:
    model = split_model(mlp(), MLP_SPLITS, mesh, (_x(8, 32),))
    with pytest.raises(ArgumentError, match=r"of shape \(8, 32\), \(4, 32\) was given"):
        model(_x(4, 32))
    with pytest.raises(ArgumentError, match=r"for the tensor input, and 3 was given"):
        model(3)
    with pytest.raises(ArgumentError, match="called with other arguments"):
        model(_x(8, 32), _x(8, 32))


def test_a_model_without_memory_stays_without(mesh: Any) -> None:
    with torch.device("meta"):
        model = mlp((64, 128, 64))
    split_model(model, {"0": {"n": 8}, "2": {"k": 8}}, mesh, (torch.zeros(4, 64),))
    assert all(p.is_meta for p in model.parameters())
    assert [tuple(p.to_local().shape) for p in model.parameters()] == [(16, 64), (16,), (64, 16), (64,)]
    assert list(model.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_mesh_axes_follow_the_layers_before() -> None:
    graph = capture(mlp(), (_x(8, 32),))
    chosen = lay_out(graph, {"0": {"n": 2}, "2": {"b": 2, "k": 2}, "4": {"k": 2, "b": 4}}, MESH).assignments
    assert chosen["0"].index("n") == chosen["2"].index("k")
    assert chosen["2"].index("b") != chosen["2"].index("k")
    assert all(a is not None for a in chosen["4"])
    for a, b in pairwise(lay_out(graph, MLP_SPLITS, MESH).assignments.values()):
        assert a.index("b") == b.index("b")


def test_an_executable_plan_of_what_no_split_runs_is_refused_before_it_is_made() -> None:
    inputs = (torch.zeros(8, 32),)
    drawing = nn.Sequential(nn.Linear(32, 32), nn.RReLU())
    assert plan(drawing, inputs, devices=4, memory=math.inf).layers
    with pytest.raises(ArgumentError, match=r"rrelu draws values at random.*or leave `executable` out"):
        plan(drawing, inputs, devices=4, memory=math.inf, executable=True)
    for draw in (
        lambda x: x + torch.normal(0.0, 1.0, x.shape),
        lambda x: x * torch.randint(0, 2, x.shape),
        lambda x: x + torch.empty_like(x).uniform_(),
        lambda x: torch.nn.functional.feature_alpha_dropout(x[:, :, None], 0.5, True)[:, :, 0],
    ):
        with pytest.raises(ArgumentError, match="draws values at random"):
            plan(Then(draw), inputs, devices=4, memory=math.inf, executable=True)
    for write in (
        lambda x: (x[:, :4].mul_(2), x)[1],
        lambda x: (x.view(-1).zero_(), x)[1],
        lambda x: (x[0].masked_fill_(x[1] > 0, 0.0), x)[1],
    ):
        with pytest.raises(ArgumentError, match="writes into a part of a tensor"):
            plan(Then(write), inputs, devices=4, memory=math.inf, executable=True)
    for write in (lambda x: x.mul_(2), lambda x: x + x.clone().mul_(2), lambda x: x.sort(-1).values.mul_(2)):
        assert plan(Then(write), inputs, devices=4, memory=math.inf, executable=True).layers
    # Views made before, which show in one process what was written, and copies, which do not.
    for view in (lambda x: x.view(-1), lambda x: x.mT, lambda x: x[:, :16], lambda x: x.detach()):
        with pytest.raises(
            ArgumentError, match=r"writes into a tensor that \w+ shows, which is read after it"
        ):
            plan(Then(_written(view)), inputs, devices=4, memory=math.inf, executable=True)
    for apart in (lambda x: x.clone(), lambda x: x.view(-1).repeat(2), lambda x: x + 1):
        assert plan(Then(_written(apart)), inputs, devices=4, memory=math.inf, executable=True).layers
    recurrent = nn.Sequential(nn.LSTM(32, 32, 2, dropout=0.5), Then(lambda x: x[0]))
    with pytest.raises(ArgumentError, match="draws values at random"):
        plan(recurrent, (torch.zeros(4, 8, 32),), devices=4, memory=math.inf, executable=True)
    for quiet in (recurrent.eval(), nn.Sequential(nn.LSTM(32, 32, 2), Then(lambda x: x[0]))):
        assert plan(quiet, (torch.zeros(4, 8, 32),), devices=4, memory=math.inf, executable=True).layers
    still = nn.Sequential(nn.Linear(32, 32), nn.Dropout())
    assert plan(still, inputs, devices=4, memory=math.inf, executable=True).layers


def _written(view: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def function(x: torch.Tensor) -> torch.Tensor:
        seen = view(x)
        x.mul_(2).add_(1)
        return x.sum() + seen.sum()

    return function


class Mean(nn.Linear):
    """A layer that keeps a mean of what it makes in a buffer, as its function does it."""

    def __init__(self, write: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
        super().__init__(32, 32)
        self.register_buffer("kept", torch.zeros(32))
        self.write = write

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        self.write(self.get_buffer("kept"), y.detach().mean(0))
        return y


@torch.no_grad()
def _noted(kept: torch.Tensor, mean: torch.Tensor) -> None:
    kept.mul_(0.9).add_(mean)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (
            lambda kept, mean: kept.mul_(0.9).add_(mean),
            "writes what a layer makes into kept, which",
        ),
        (lambda kept, mean: kept.lerp_(mean, 0.1), "writes what a layer makes into kept, which"),
        (_noted, r"has layers inside of torch.no_grad\(\)"),
    ],
)
def test_a_model_that_writes_into_what_it_holds_is_refused(
    mesh: Any, write: Callable[[torch.Tensor, torch.Tensor], object], message: str
) -> None:
    model, inputs = Mean(write), (_x(8, 32),)
    with pytest.raises(ArgumentError, match=message):
        split_model(model, {"Mean": {"b": 2}}, mesh, inputs)
    assert not any(isinstance(p, DTensor) for p in model.parameters())
    counting = Mean(lambda kept, mean: kept.add_(1))
    split_model(counting, {"Mean": {"b": 2}}, mesh, inputs)(*inputs)
    assert counting.get_buffer("kept").eq(1).all()


class Straight(torch.autograd.Function):
    """Rounding whose gradient passes: of torch.round it is zero."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def test_a_backward_pass_that_cannot_be_exported_is_refused_in_training(mesh: Any) -> None:
    inputs = (_x(8, 32),)
    for make in (lambda: prepare(nn.Sequential(nn.Linear(32, 32)), "mxfp8"), lambda: Then(Straight.apply)):
        model = make()
        with pytest.raises(ArgumentError, match="has a backward pass of its own"):
            split_model(model, {}, mesh, inputs)
        with pytest.raises(ArgumentError, match=r"has a backward pass of its own.*leave `executable` out"):
            plan(model, inputs, devices=8, memory=math.inf, executable=True)
        assert not any(isinstance(p, DTensor) for p in model.parameters())
        expected = model.eval()(*inputs)
        assert torch.equal(split_model(model, {}, mesh, inputs)(*inputs), expected)

    @torch.library.custom_op("tests_planner::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    doubled.register_fake(torch.empty_like)
    doubled.register_autograd(lambda ctx, gradient: 2 * gradient)
    assert capture(Then(doubled), inputs).unrunnable == ""
    Straight.apply(inputs[0].requires_grad_()).sum().backward()  # as before a model was captured
    assert torch.equal(inputs[0].grad, torch.ones(8, 32))


def test_regions_around_layers_are_refused_and_those_of_inputs_run(mesh: Any) -> None:
    def narrowed(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return x.exp().sum(-1)

    def turned(x: torch.Tensor) -> torch.Tensor:
        return x * narrowed(torch.ones(32, 32))

    for function, where in ((narrowed, "autocast"), (torch.no_grad()(torch.sin), "no_grad")):
        with pytest.raises(ArgumentError, match=rf"has layers inside of torch.{where}\(\)"):
            split_model(Then(function), {"Then": {"b": 2}}, mesh, (_x(8, 32),))
    assert split_model(Then(turned), {"Then": {"b": 2}}, mesh, (_x(8, 32),))(_x(8, 32)).shape == (8, 32)


class Then(nn.Linear):
    """A function of what a layer gives, or of what several give."""

    def __init__(self, function: Callable[[Any], torch.Tensor]) -> None:
        super().__init__(32, 32)
        self.function = function

    def forward(self, x: Any) -> torch.Tensor:
        return self.function(super().forward(x) if isinstance(x, torch.Tensor) else x)
