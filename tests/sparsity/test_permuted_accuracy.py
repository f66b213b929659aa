"""Channels of whole models: outputs stay, more is kept, and what cannot move is left and named."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fewbits.errors import ArgumentError
from fewbits.sparsity import channel_rules, find_order, permute, permute_model, sparsify
from fewbits.train.tasks.bytes_model import ByteModel, Shape


class Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)
        self.short = nn.Conv2d(before, after, 1, stride) if before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.second_norm(self.second(functional.relu(self.first_norm(self.first(x)))))
        return functional.relu(y + self.short(x))


class ResNet(nn.Module):
    """Shared channels of a residual sum, a depthwise convolution, and a flatten before a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.stem_norm = nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(Residual(16, 16, 1), Residual(16, 32, 2))
        self.depthwise = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.pointwise = nn.Conv2d(32, 32, 1)
        self.hidden = nn.Linear(32 * 4, 24)
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(functional.relu(self.stem_norm(self.stem(x))))
        x = functional.max_pool2d(functional.relu6(self.pointwise(self.depthwise(x))), 2)
        return self.head(functional.gelu(self.hidden(x.flatten(1))))


def resnet() -> ResNet:
    torch.manual_seed(0)
    model = ResNet()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1)
            nn.init.uniform_(module.bias)
    return model.eval()


def transformer() -> ByteModel:
    torch.manual_seed(0)
    model = ByteModel(Shape(width=64, layers=2, hidden=128))
    for p in model.parameters():
        if p.dim() == 1:
            nn.init.uniform_(p, 0.5, 1)  # else no norm would tell its channels apart
    return model.eval()


def tokens() -> Tensor:
    return torch.randint(0, 256, (2, 16), generator=torch.Generator().manual_seed(1))


def images(side: int = 8) -> Tensor:
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a random order for a better one: any order must leave the outputs."""

    def order(w: list[Tensor], *_: Any, **__: Any) -> Any:
        random = torch.randperm(w[0].shape[1], generator=torch.Generator().manual_seed(2))
        return replace(find_order(w, moves=1), order=random, after=1e9)

    monkeypatch.setattr(permute_model, "find_order", order)


@pytest.mark.parametrize(("make", "inputs"), [(resnet, images()), (transformer, tokens())])
def test_outputs_stay_and_more_is_kept(make: Callable[[], nn.Module], inputs: Tensor) -> None:
    model = make()
    before, weights = model(inputs), {k: v.clone() for k, v in model.state_dict().items()}
    report = permute(model, "2:4", example_inputs=inputs, seconds=2)
    after = model(inputs)
    assert float((after - before).detach().abs().max()) < 1e-5 * float(before.detach().abs().max())
    assert report.largest_change < 1e-5
    assert len(report.permuted) >= 3
    for one in report.permuted:
        assert one.search.after > 1.005 * one.search.before
        for name in (*one.layers, *one.others):
            now = model.state_dict()[name]
            assert not torch.equal(now, weights[name])
            assert torch.equal(now.flatten().sort().values, weights[name].flatten().sort().values)
    moved = {name for one in report.permuted for name in (*one.layers, *one.others)}
    for name in set(weights) - moved:
        assert torch.equal(model.state_dict()[name], weights[name])


def test_a_residual_network_shares_channels_and_leaves_what_it_must() -> None:
    report = permute(resnet(), example_inputs=images(), seconds=1)
    shared = next(one for one in report.permuted if "blocks.0.first.weight" in one.layers)
    assert shared.layers == ("blocks.0.first.weight", "blocks.1.first.weight", "blocks.1.short.weight")
    assert {"stem.weight", "stem_norm.running_mean", "blocks.0.second.weight"} <= set(shared.others)
    point = next(one for one in report.permuted if one.layers == ("pointwise.weight",))
    assert {"depthwise.weight", "depthwise.bias", "blocks.1.second.weight"} <= set(point.others)
    left = dict(report.left_alone)
    assert set(left) == {"stem.weight", "depthwise.weight", "hidden.weight"}
    assert left["depthwise.weight"] == "its number of channels, 1, is no multiple of 4"
    assert "input of the model" in left["stem.weight"]
    assert "flattened" in left["hidden.weight"]
    assert "left alone: stem.weight: an input" in str(report)


def test_a_transformer_shares_its_stream_and_leaves_its_heads() -> None:
    report = permute(transformer(), example_inputs=tokens(), seconds=1)
    stream = max(report.permuted, key=lambda one: len(one.layers))
    assert {"blocks.0.query_key_value.weight", "blocks.1.mlp_in.weight", "head.weight"} <= set(stream.layers)
    assert {"norm.weight", "recent_in.bias", "blocks.1.attention_out.weight"} <= set(stream.others)
    assert "heads" in dict(report.left_alone)["blocks.0.attention_out.weight"]


def test_permuting_a_consumer_and_not_its_producer_is_found_and_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = resnet()
    before, weights = model(images()), {k: v.clone() for k, v in model.state_dict().items()}
    move = permute_model._move

    def consumers_only(axes: Any, tensors: dict[str, Tensor], *rest: Any) -> None:
        move(axes, {k: v for k, v in tensors.items() if not k.startswith("blocks.0.first_norm")}, *rest)

    monkeypatch.setattr(permute_model, "_move", consumers_only)
    with pytest.raises(ArgumentError, match="outputs of ResNet change by"):
        permute(model, example_inputs=images(), seconds=1)
    assert torch.equal(model(images()), before)
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())


def small() -> nn.Sequential:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(16)
    for p in norm.parameters():
        nn.init.uniform_(p, 0.5, 1)
    return nn.Sequential(nn.Linear(8, 16), norm, nn.ReLU(), nn.Linear(16, 8)).eval()


def expand_bias(model: nn.Sequential) -> None:
    model[0].bias = nn.Parameter(torch.full((1,), 0.1).expand(16))


def expand_variance(model: nn.Sequential) -> None:
    model[1].register_buffer("running_var", torch.ones(1).expand(16))


@pytest.mark.parametrize(("change", "name"), [(expand_bias, "0.bias"), (expand_variance, "1.running_var")])
def test_channels_of_values_that_share_a_place_stay(
    at_random: None, change: Callable[[nn.Sequential], None], name: str
) -> None:
    model, x = small(), torch.randn(3, 8)
    change(model)
    before = model(x)
    report = permute(model, example_inputs=x)
    assert not report.permuted
    said = dict(report.left_alone)["3.weight"]
    assert said.startswith(f"{name} has several values in one place of memory")
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("where", [0, 3, 6, None])
def test_what_ends_in_an_exception_leaves_the_model_as_it_was(
    at_random: None, monkeypatch: pytest.MonkeyPatch, stop: type[BaseException], where: int | None
) -> None:
    """Seven tensors move, and outputs are compared. An interrupt comes after a write, an error before it."""
    model, x = small(), torch.randn(3, 8)
    weights, whole = {k: v.clone() for k, v in model.state_dict().items()}, Tensor.copy_
    held, writes = {id(v) for v in (*model.parameters(), *model.buffers())}, 0

    def copy(self: Tensor, source: Tensor) -> Tensor:
        nonlocal writes
        if id(self) not in held:
            return whole(self, source)
        writes += 1
        if writes - 1 == where and stop is RuntimeError:
            raise stop("unsupported operation")
        whole(self, source)
        if writes - 1 == where:
            raise stop
        return self

    def run(*_: Any) -> float:
        raise stop("at the outputs")

    monkeypatch.setattr(Tensor, "copy_", copy)
    monkeypatch.setattr(permute_model, "_largest_change", run)
    with pytest.raises(stop):
        permute(model, example_inputs=x)
    made = 7 if where is None else where + 1
    assert writes == 2 * made - (stop is RuntimeError and where is not None)
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())


def norm_of_inference() -> nn.Module:
    with torch.inference_mode():
        return nn.BatchNorm1d(8)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (lambda: nn.Linear(8, 8, device="meta"), r"1\.weight is on the meta device"),
        (lambda: nn.LazyLinear(8), r"1\.weight has no values yet"),
        (norm_of_inference, r"1\.weight was made in torch\.inference_mode"),
    ],
)
def test_a_model_without_values_that_change_is_refused(layer: Callable[[], nn.Module], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        permute(nn.Sequential(nn.Linear(8, 8), layer()), example_inputs=torch.randn(3, 8))


class Beside(nn.Module):
    """A network whose outputs lie in one tensor with values that are not finite."""

    def __init__(self, net: nn.Sequential, other: float) -> None:
        super().__init__()
        self.net, self.other = net, other

    def forward(self, x: Tensor) -> Tensor:
        y = self.net(x)
        return torch.cat([y, torch.full_like(y, self.other)], -1)


def four_layers() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(16, 8)).eval()


@pytest.mark.parametrize("other", [torch.nan, torch.inf, -torch.inf])
def test_outputs_that_are_not_finite_hide_no_change(other: float) -> None:
    x = torch.randn(2, 16, generator=torch.Generator().manual_seed(1))
    net = four_layers()
    before = net(x)
    report = permute(Beside(net, other), example_inputs=x, seconds=1)
    assert len(report.permuted) == 3
    assert torch.allclose(net(x), before, atol=1e-6)

    net = four_layers()
    net[4].weight.data = net[2].weight.data  # two parameters in the same memory, which no trace shows
    weights = {k: v.clone() for k, v in net.state_dict().items()}
    with pytest.raises(ArgumentError, match="The weights are as they were"):
        permute(Beside(net, other), example_inputs=x, seconds=1)
    assert all(torch.equal(v, weights[k]) for k, v in net.state_dict().items())


class Counting(nn.Module):
    """Layers, and buffers that change in each call: one in place, one that is another tensor then."""

    count: Tensor
    last: Tensor

    def __init__(self, net: nn.Sequential) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("count", torch.tensor([torch.nan, 0.0]))
        self.register_buffer("last", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.net(x) + self.count[1]
        self.count.add_(1)
        self.last = y.detach().mean(0)
        return y


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_that_counts_its_calls_has_its_buffers_as_they_were(tied: bool) -> None:
    x = torch.randn(2, 16, generator=torch.Generator().manual_seed(1))
    model = Counting(four_layers())
    if tied:
        model.net[4].weight.data = model.net[2].weight.data
    before, buffers = {k: v.clone() for k, v in model.state_dict().items()}, dict(model.named_buffers())
    with pytest.raises(ArgumentError, match="as they were") if tied else nullcontext():
        assert len(permute(model, example_inputs=x, seconds=1).permuted) == 3
    for name, buffer in model.named_buffers():
        assert buffer is buffers[name]
        assert torch.equal(buffer.view(torch.int32), before[name].view(torch.int32))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items() if "net" in k) == tied


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (torch.nan, torch.nan, 0.0),
        (torch.inf, torch.inf, 0.0),
        (torch.nan, 0.0, torch.inf),
        (torch.nan, torch.inf, torch.inf),
        (torch.inf, torch.finfo(torch.float32).max, torch.inf),
        (torch.inf, -torch.inf, torch.inf),
        (0.0, torch.nan, torch.inf),
        (4.0, 5.0, 0.25),
    ],
)
def test_an_output_is_finite_both_times_or_the_same(before: float, after: float, change: float) -> None:
    pair = ([torch.tensor([1.0, x, torch.inf])] for x in (before, after))
    assert permute_model._largest_change(*pair) == change


def test_an_operation_that_looks_at_neighbours_and_is_not_fixed_is_found(
    monkeypatch: pytest.MonkeyPatch, at_random: Any
) -> None:
    class Summed(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return self[1](self[0](x).cumsum(-1))

    model = Summed(nn.Linear(8, 16), nn.Linear(16, 8))
    report = permute(model, example_inputs=torch.randn(2, 8))
    assert "cumsum is not known" in dict(report.left_alone)["1.weight"]
    monkeypatch.setitem(channel_rules._RULES, "cumsum", channel_rules._as_first)
    with pytest.raises(ArgumentError, match="does something that its trace does not show"):
        permute(model, example_inputs=torch.randn(2, 8))


class Between(nn.Module):
    """Some operations between two layers of 16 channels."""

    def __init__(self, between: Callable[..., Tensor], channels: int = 16, convolution: bool = False) -> None:
        super().__init__()
        layer = (lambda n, m: nn.Conv2d(n, m, 1)) if convolution else nn.Linear
        self.first, self.also = layer(3, 16), layer(3, 16)
        self.scale = nn.Parameter(torch.randn(16))
        self.square = nn.Parameter(torch.randn(16, 16))
        self.table = nn.Parameter(torch.randn(7, 16))
        self.norm = nn.GroupNorm(1, 16)
        self.last = layer(channels, 5)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self, self.first(x)))


MOVES: dict[str, Callable[..., Tensor]] = {
    "scale and shift": lambda m, x: x * m.scale + m.also.weight.sum(1),
    "gate": lambda m, x: functional.silu(x) * x.sigmoid(),
    "softmax": lambda m, x: x.softmax(-1),
    "layer norm": lambda m, x: functional.layer_norm(x, (16,), m.scale, m.scale),
    "rms norm": lambda m, x: functional.rms_norm(x, (16,), m.scale),
    "square": lambda m, x: x @ m.square,
    "square transposed": lambda m, x: x @ m.square.T.contiguous(),
    "addmm": lambda m, x: torch.addmm(m.scale, x[0], m.square)[None],
    "one bias for all": lambda m, x: functional.linear(x, m.square, m.scale[:1]),
    "recurrent": lambda m, x: x + functional.linear(x, m.square),
    "embedding": lambda m, x: x + functional.embedding(torch.tensor([[0, 3, 6, 1]]), m.table),
    "mean and back": lambda m, x: x - x.mean(-1, keepdim=True),
    "mean of time": lambda m, x: x - x.mean(1)[:, None],
    "attention of one head": lambda m, x: functional.scaled_dot_product_attention(x, x, x, is_causal=True),
    "attention written out": lambda m, x: (x @ x.transpose(1, 2)).softmax(-1) @ x,
    "attention with a mask": lambda m, x: functional.scaled_dot_product_attention(
        x, x, x, attn_mask=torch.eye(4).bool()
    ),
    "time cut and joined": lambda m, x: torch.cat([x[:, 1:], x[:, :1]], 1),
    "time split": lambda m, x: torch.cat(x.split([1, 3], 1)[::-1], 1),
    "time chosen": lambda m, x: torch.stack([x[:, 0], *x.unbind(1)[1:]], 1),
    "time padded": lambda m, x: functional.pad(x, (0, 0, 2, 1)),
    "moved about": lambda m, x: x.permute(2, 0, 1).unsqueeze(1).squeeze(1).permute(1, 2, 0),
    "reshaped before": lambda m, x: x.reshape(-1, 16).view(1, 4, 16).expand(2, 4, 16),
    "masked": lambda m, x: torch.where(x > 0, x, torch.zeros_like(x)).masked_fill(x > 2, 0.5),
    "bits": lambda m, x: x.view(torch.int32).view(torch.float32),
    "dropout": lambda m, x: functional.dropout(x, 0.5, m.training).to(torch.float64).float(),
}
STAYS: dict[str, Callable[..., Tensor]] = {
    "channels cut and joined": lambda m, x: torch.cat([x[..., 8:], x[..., :8]], -1),
    "channels split": lambda m, x: torch.cat(x.chunk(2, -1)[::-1], -1),
    "heads": lambda m, x: x.unflatten(-1, (4, 4)).softmax(-1).flatten(-2),
    "vector": lambda m, x: x * (x @ m.scale)[..., None],
    "shared keys": lambda m, x: functional.scaled_dot_product_attention(
        torch.stack([x, x], 1), x[:, None], x[:, None], enable_gqa=True
    ).mean(1),
    "flipped": lambda m, x: x.flip(-1),
    "channels shifted": lambda m, x: functional.pad(x, (1, -1)),
    "one channel": lambda m, x: x * x[..., :1] + x.select(-1, 3)[..., None],
    "channels found": lambda m, x: x * x.argmax(-1, keepdim=True),
    "channels unbound": lambda m, x: torch.stack(x.unbind(-1), -1),
    "a constant": lambda m, x: x + torch.arange(16),
    "looked up": lambda m, x: x + functional.embedding(torch.arange(16) % 7, m.table).select(-1, 3),
    "channels counted": lambda m, x: x[..., torch.arange(15, -1, -1)],
    "sorted": lambda m, x: x.sort(-1).values,
    "glu": lambda m, x: functional.glu(torch.cat([x, x], -1)),
    "bytes": lambda m, x: x + x.view(torch.uint8).view(torch.float32),
}


@pytest.mark.parametrize("name", MOVES)
def test_channels_move_through(at_random: None, name: str) -> None:
    torch.manual_seed(0)
    report = permute(Between(MOVES[name]), example_inputs=torch.randn(1, 4, 3))
    assert "last.weight" in {layer for one in report.permuted for layer in one.layers}


@pytest.mark.parametrize("name", STAYS)
def test_channels_stay_before(at_random: None, name: str) -> None:
    torch.manual_seed(0)
    report = permute(Between(STAYS[name]), example_inputs=torch.randn(1, 4, 3))
    assert {name for name, _ in report.left_alone} == {"first.weight", "also.weight", "last.weight"}
    assert report.largest_change == 0


@pytest.mark.parametrize("shape", [(1, 16, 5, 5), (16, 5, 1), (2, 1, 1, 5), (5,)])
def test_a_mask_of_attention_moves_with_the_channels_that_it_tells_apart(
    at_random: None, shape: tuple[int, ...]
) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 16, 1), nn.Conv2d(16, 8, 1)
            self.mask = nn.Parameter(3 * torch.randn(shape))

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return self.last(functional.scaled_dot_product_attention(x, x, x, attn_mask=self.mask))

    torch.manual_seed(0)
    model, x = Masked(), torch.randn(2, 3, 5, 5)
    before = model(x)
    alike = torch.ones(2, 3, 5, 5)  # of equal positions a mask changes nothing: no check of outputs sees it
    report = permute(model, example_inputs=alike)
    assert ("mask" in report.permuted[0].others) is (16 in shape)
    assert torch.allclose(model(x), before, atol=1e-5)


@pytest.mark.filterwarnings("ignore:The use of `x.T`")
@pytest.mark.parametrize("positions", [8, 16])
def test_a_transposition_of_three_axes_reverses_all(at_random: None, positions: int) -> None:
    class Reversed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 16)
            self.last = nn.Conv1d(positions, 4, 1)  # of (16, positions, batch)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.third(self.second(self.first(x).relu())).T)

    torch.manual_seed(0)
    report = permute(Reversed(), example_inputs=torch.randn(12, positions, 8))
    assert {one.layers for one in report.permuted} == {("second.weight",), ("third.weight",)}


def test_a_rule_that_joins_axes_of_two_sizes_fixes_both(
    monkeypatch: pytest.MonkeyPatch, at_random: None
) -> None:
    def wrong(axes: Any, node: Any) -> None:
        for axis in range(3):
            axes.join(node.all_input_nodes[0], axis, node, axis)

    monkeypatch.setitem(channel_rules._RULES, "transpose", wrong)
    model = Between(lambda m, x: x.transpose(1, 2).relu().transpose(1, 2))
    report = permute(model, example_inputs=torch.randn(1, 4, 3))
    assert dict(report.left_alone)["last.weight"] == "it meets an axis of another size"


def test_views_without_values_are_followed_nowhere(at_random: None) -> None:
    model = Between(lambda m, x: x.mT.reshape(-1, 16))
    assert not permute(model, example_inputs=torch.randn(2, 0, 3)).permuted


IMAGES: dict[str, tuple[Callable[..., Tensor], bool]] = {
    "pools": (lambda m, x: functional.adaptive_avg_pool2d(functional.avg_pool2d(x, 2), 1), True),
    "group norm of one group": (lambda m, x: m.norm(x), True),
    "group norm of channels": (lambda m, x: functional.group_norm(x, 16, m.scale), True),
    "group norm of four": (lambda m, x: functional.group_norm(x, 4, m.scale), False),
    "instance norm": (lambda m, x: functional.instance_norm(x, weight=m.scale, bias=m.scale), True),
    "larger": (lambda m, x: functional.interpolate(x, scale_factor=2), True),
    "depthwise": (lambda m, x: functional.conv2d(x, m.square.view(16, 1, 4, 4), groups=16), True),
    "two groups": (lambda m, x: functional.conv2d(x, m.square.view(16, 8, 1, 2), groups=2), False),
    "shuffled": (lambda m, x: functional.pixel_shuffle(functional.pixel_unshuffle(x, 2), 2), False),
    "mean of positions": (lambda m, x: x.mean((2, 3), keepdim=True), True),
}


@pytest.mark.parametrize("name", IMAGES)
def test_channels_of_images_move_where_they_can(at_random: None, name: str) -> None:
    torch.manual_seed(0)
    between, moves = IMAGES[name]
    report = permute(Between(between, convolution=True), example_inputs=torch.randn(2, 3, 8, 8))
    assert ("last.weight" in {layer for one in report.permuted for layer in one.layers}) is moves


def test_flattened_channels_move_in_blocks_and_a_second_flatten_fixes_them(at_random: None) -> None:
    class Flat(nn.Module):
        def __init__(self, twice: bool) -> None:
            super().__init__()
            self.first, self.inner, self.last = (
                nn.Conv2d(3, 16, 1),
                nn.Conv2d(16, 16, 1),
                nn.Linear(16 * 9, 5),
            )
            self.scale = nn.Parameter(torch.randn(16 * 9))
            self.twice = twice

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            x = (x + self.inner(x)).flatten(1) * self.scale
            return self.last(x.reshape(2, 16 * 3, 3).flatten(1) if self.twice else x)

    report = permute(Flat(False), example_inputs=torch.randn(2, 3, 3, 3))
    (one,) = report.permuted
    assert one.layers == ("inner.weight",)
    assert {"last.weight", "scale", "first.weight", "first.bias"} <= set(one.others)
    assert not permute(Flat(True), example_inputs=torch.randn(2, 3, 3, 3)).permuted


def test_channels_that_are_flattened_in_two_ways_stay(at_random: None) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.few, self.few_inner = nn.Conv2d(3, 16, 1), nn.Conv2d(16, 16, 1)
            self.many, self.many_inner = nn.Conv2d(3, 48, 1), nn.Conv2d(48, 48, 1)
            self.last = nn.Linear(16 * 9, 5)

        def forward(self, x: Tensor) -> Tensor:
            few, many = self.few(x), self.many(x)
            few, many = few + self.few_inner(few), many + self.many_inner(many)
            return self.last(few.flatten(1) + many.mean(3).flatten(1))

    report = permute(Two(), example_inputs=torch.randn(2, 3, 3, 3))
    assert not report.permuted
    assert dict(report.left_alone)["many_inner.weight"] == "flattened in two ways"


def test_the_time_that_is_left_is_shared_among_the_layers_that_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = []
    whole = permute_model.find_order
    monkeypatch.setattr(
        permute_model, "find_order", lambda *a, seconds, **k: given.append(seconds) or whole(*a, moves=1, **k)
    )
    layers = [layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.ReLU())]
    permute(nn.Sequential(*layers, nn.Linear(8, 8)), example_inputs=torch.randn(2, 8), seconds=60.0)
    assert [round(seconds / 60, 1) for seconds in given] == [0.3, 0.5, 1.0]


def test_tied_weights_are_one_and_modes_stay() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(20, 16)
            self.inner, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)
            self.head = nn.Linear(16, 20, bias=False)
            self.head.weight = self.table.weight

        def forward(self, x: Tensor) -> Tensor:
            x = self.table(x)
            return self.head(self.norm(x + self.inner(x)))

    torch.manual_seed(0)
    model = Tied()
    model.norm.eval()
    (one,) = permute(model, example_inputs=torch.arange(6)[None], seconds=1).permuted
    assert set(one.layers) == {"inner.weight", "table.weight"}
    assert model.head.weight is model.table.weight
    assert (model.training, model.norm.training, model.inner.training) == (True, False, True)


def test_sizes_that_do_not_fit_are_named_and_equal_seeds_give_equal_models() -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6), nn.Linear(6, 2)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    reports = [permute(m, example_inputs=torch.randn(1, 4), seed=5) for m in models]
    assert dict(reports[0].left_alone)["3.weight"] == "its number of channels, 6, is no multiple of 4"
    assert all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in models), strict=True))


def test_modules_are_chosen_by_name(at_random: None) -> None:
    layers = nn.Linear(4, 16), nn.Linear(16, 8), nn.Linear(8, 4)
    inputs = torch.randn(1, 4)
    (one,) = permute(nn.Sequential(*layers), example_inputs=inputs, exclude="1").permuted
    assert one.layers == ("2.weight",)
    (one,) = permute(nn.Sequential(*layers), example_inputs=inputs, include=("0", "1")).permuted
    assert one.layers == ("1.weight",)
    twice = Beside(nn.Sequential(*layers), 0.0)
    twice.same = layers[1]
    (one,) = permute(twice, example_inputs=inputs, exclude="same").permuted
    assert one.layers == ("net.2.weight",)
    (one,) = permute(twice, example_inputs=inputs, include="same").permuted
    assert one.layers == ("net.1.weight",)
    with pytest.raises(ArgumentError, match="exclude='head' fits no module"):
        permute(nn.Sequential(*layers), example_inputs=inputs, exclude="head")


@pytest.mark.parametrize(
    ("choice", "layers"),
    [
        ({"include": "0"}, {"0.weight"}),
        ({"include": "1"}, {"0.weight"}),
        ({"exclude": "0"}, {"2.weight"}),
        ({"exclude": "1"}, {"2.weight"}),
        ({}, {"0.weight", "2.weight"}),
    ],
)
def test_a_tied_weight_is_meant_by_each_of_its_names(
    at_random: None, choice: dict[str, str], layers: set[str]
) -> None:
    class Tied(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return self[2](self[1](self[0](self[3](x)).relu()).relu())

    model = Tied(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    report = permute(model, example_inputs=torch.randn(3, 8), **choice)
    assert {layer for one in report.permuted for layer in one.layers} == layers


class InputsFirst(nn.Module):
    """A layer as the Conv1D of Hugging Face's GPT-2."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(inputs, outputs)),
            nn.Parameter(torch.randn(outputs)),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return y.view(*x.shape[:-1], self.weight.shape[1])


InputsFirst.__module__, InputsFirst.__qualname__ = "transformers.pytorch_utils", "Conv1D"  # known by its name


def test_the_layer_of_hugging_face_that_has_its_inputs_first_keeps_more_of_them() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(InputsFirst(32, 8), nn.ReLU(), InputsFirst(8, 32)), torch.randn(3, 5, 8)

    def kept() -> float:
        magnitudes = model[2].weight.detach().abs().T.reshape(8, 8, 4)
        return float(magnitudes.sort(-1).values[..., 2:].sum())

    before, outputs = kept(), model(x)
    report = permute(model, example_inputs=x, seconds=1)
    assert [one.layers for one in report.permuted] == [("2.weight",)]
    assert [name for name, _ in report.left_alone] == ["0.weight"]
    assert kept() > 1.02 * before
    assert kept() == pytest.approx(report.permuted[0].search.after)
    assert torch.allclose(model(x), outputs, atol=1e-4)


@pytest.mark.filterwarnings("ignore:The tensor attributes self.recurrent")
def test_every_weight_that_could_be_pruned_is_permuted_or_named(at_random: None) -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.recurrent, self.last = nn.Linear(8, 8), nn.LSTM(8, 8), nn.Linear(8, 8)
            self.unused = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.recurrent(self.first(x))[0])

    model = Several()
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    report = permute(model, example_inputs=torch.randn(3, 2, 8))
    named = {name for name, _ in report.left_alone} | {x for one in report.permuted for x in one.layers}
    assert dict(report.left_alone)["unused.weight"] == "the trace does not reach it"
    assert torch.equal(model.unused.weight, weights["unused.weight"])
    assert named == {tensor.tensor for tensor in sparsify(model, "2:4").pruned}


def test_a_sparse_model_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    sparsify(model, "2:4")
    with pytest.raises(ArgumentError, match="permute it before sparsify"):
        permute(model, example_inputs=torch.randn(1, 4))


def test_a_model_that_cannot_be_traced_is_refused() -> None:
    class Branch(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return x if float(x.sum()) > 0 else super().forward(x)

    with pytest.raises(ArgumentError, match=r"torch\.export cannot trace Branch"):
        permute(Branch(4, 4), example_inputs=torch.randn(1, 4))
