"""A prepared model is the same model: its names, its ties, and everything that is done with models."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fewbits.errors import ArgumentError
from fewbits.nn import prepare
from fewbits.nn.layers import LAYERS


@dataclass(frozen=True)
class Output:
    """What a model returns."""

    logits: torch.Tensor
    layers: list[torch.Tensor]
    kind: type = nn.Linear


class Named(nn.Module):
    """Gives its results names."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> dict[str, Output]:
        y = self.layer(x)
        return {"output": Output(y, [y])}


def test_results_within_a_dataclass_are_float32() -> None:
    output = prepare(Named(), "mxfp6")(torch.randn(2, 8))["output"]
    assert [output.logits.dtype, output.layers[0].dtype] == [torch.float32, torch.float32]
    assert isinstance(output, Output)
    assert output.kind is nn.Linear


class Every(nn.Module):
    """One layer of each kind that is changed."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.picture = nn.Conv2d(1, 2, 3, padding=1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.gru = nn.GRU(8, 8, batch_first=True, bidirectional=True)
        self.bag = nn.EmbeddingBag(11, 8)
        self.plain = nn.RNN(8, 8, batch_first=True)
        self.cell = nn.LSTMCell(8, 8)
        self.pair = nn.Bilinear(16, 8, 8)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        x = x + self.conv(x.mT).mT
        x = x + self.picture(x.unsqueeze(1)).mean(1)
        x = x + self.attention(self.norm(x), x, x)[0]
        x = x + self.bag(tokens).unsqueeze(1) + self.plain(x)[0] + self.cell(x[:, 0])[0].unsqueeze(1)
        y, _ = self.gru(self.lstm(x)[0])
        return self.head(self.pair(y, x.to(y.dtype)))


def mlp(dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(40, 33), nn.ReLU(), nn.Dropout(dropout), nn.Linear(33, 33), nn.ReLU(), nn.Linear(33, 10)
    )


def loss_and_gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    loss = model(x).logsumexp(-1).mean()
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]


def narrow(model: nn.Module) -> Iterator[str]:
    return (name for name, m in model.named_modules() if type(m) in LAYERS.values())


@pytest.mark.parametrize("chosen", ["mxfp6", "mx9", "tf32", "posit8", "add-multiply", "bf16-only"])
def test_every_layer_trains_and_keeps_its_names(chosen: str) -> None:
    torch.manual_seed(0)
    model = Every()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    assert prepare(model, chosen) is model
    assert list(model.state_dict()) == list(before)
    assert set(narrow(model)) == set(dict(Every().named_children())) - {"norm"}
    y = model(torch.arange(10).reshape(2, 5))
    assert y.dtype == torch.float32
    y.logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    fresh = Every()
    fresh.load_state_dict(model.state_dict())


def test_a_recipe_that_rounds_nothing_leaves_layers_alone() -> None:
    assert not list(narrow(prepare(Every(), "fp32")))


def test_excluded_layers_and_what_lies_within_stay_as_they_are() -> None:
    model = prepare(nn.Sequential(Every(), mlp()), "mxfp6", exclude=("0.g*", "*.attention", "1"))
    kept = set(dict(Every().named_children())) - {"norm", "gru", "attention"}
    assert set(narrow(model)) == {f"0.{n}" for n in kept}


@pytest.mark.parametrize(
    ("exclude", "message"),
    [
        (("0.gruu",), "exclude='0.gruu' fits no module"),
        (("*.out_proj",), "names 0.attention.out_proj, which is a part of 0.attention: leave out that layer"),
    ],
)
def test_an_exclusion_without_effect_is_refused(exclude: tuple[str, ...], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        prepare(nn.Sequential(Every()), "mxfp6", exclude=exclude)


@pytest.mark.parametrize("chosen", ["mxfp6", "fp8-stochastic", "bf16-only"])
def test_layers_left_out_compute_in_the_dtype_of_their_parameters(chosen: str) -> None:
    torch.manual_seed(0)
    given: list[torch.dtype] = []
    model = nn.Sequential(
        nn.Linear(8, 8), nn.PReLU(), nn.RMSNorm(8), nn.Sequential(nn.Linear(8, 8)), nn.Linear(8, 8)
    )
    prepare(model, chosen, exclude=("3",))
    model[3][0].register_forward_pre_hook(lambda module, args: given.append(args[0].dtype))
    model(torch.randn(4, 8)).sum().backward()
    assert given == [model[3][0].weight.dtype] == [torch.float32]
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in model.parameters())


def test_a_copy_computes_the_same_with_parameters_of_its_own() -> None:
    model, x = prepare(Every(), "mxfp4"), torch.arange(10).reshape(2, 5)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), model(x))
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    assert not torch.equal(twin(x), model(x))


@pytest.mark.parametrize("chosen", ["mxfp6", "fixed16"])  # the second draws at random
def test_checkpointing_changes_no_gradient(chosen: str) -> None:
    model, x = prepare(mlp(0.5), chosen), torch.randn(20, 40)
    torch.manual_seed(1)
    wanted = loss_and_gradients(model, x)
    torch.manual_seed(1)
    loss = checkpoint(model, x, use_reentrant=False).logsumexp(-1).mean()
    found = [loss, *torch.autograd.grad(loss, list(model.parameters()))]
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


# What the compiler does with any autograd.Function.
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated")
@pytest.mark.parametrize("chosen", ["mxfp6", "mx9"])
def test_a_compiled_model_computes_the_same(chosen: str) -> None:
    model, x = prepare(mlp(), chosen), torch.randn(20, 40)
    compiled = torch.compile(model, backend="eager", fullgraph=False)
    torch.testing.assert_close(loss_and_gradients(compiled, x), loss_and_gradients(model, x), rtol=0, atol=0)


@pytest.mark.parametrize("chosen", ["mxfp6", "tf32"])
def test_a_users_autocast_around_a_prepared_model_changes_no_product(chosen: str) -> None:
    torch.manual_seed(0)
    model, tokens = prepare(Every(), chosen), torch.arange(10).reshape(2, 5)
    wanted = loss_and_gradients(model, tokens)
    with torch.autocast("cpu", torch.bfloat16):
        found = loss_and_gradients(model, tokens)
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02)
    layers = prepare(nn.Sequential(nn.Conv1d(4, 5, 3), nn.Flatten(), nn.Linear(40, 10)), chosen)
    x = torch.randn(20, 4, 10)
    with torch.autocast("cpu", torch.bfloat16):
        inside = layers(x)
    assert torch.equal(inside, layers(x))


# Layers that join tensors, or compute what autocast knows, with the shape of an input.
JOINING: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lstm": (lambda: nn.LSTM(8, 6, num_layers=2, bidirectional=True, proj_size=3), (4, 3, 8)),
    "gru": (lambda: nn.GRU(8, 6, bidirectional=True), (4, 3, 8)),
    "rnn": (lambda: nn.RNN(8, 6), (4, 8)),
    "lstm cell": (lambda: nn.LSTMCell(8, 6), (4, 8)),
    "attention": (lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True), (4, 3, 8)),
    "prelu": (lambda: nn.Sequential(nn.Linear(8, 8), nn.PReLU(8)), (4, 8)),
    "bilinear": (lambda: nn.Bilinear(8, 8, 5), (4, 8)),
    "transposed": (lambda: nn.ConvTranspose1d(8, 4, 3), (4, 8, 5)),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("kind", JOINING)
@pytest.mark.parametrize("vector", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_of_any_type_changes_no_bit_of_a_layer(kind: str, vector: str, dtype: torch.dtype) -> None:
    build, shape = JOINING[kind]
    torch.manual_seed(0)
    layer, x = prepare(build(), f"mx9:vector={vector}"), torch.randn(shape)
    found = []
    for enabled in False, True:
        leaf = x.clone().requires_grad_()
        given = {"attention": (leaf,) * 3, "bilinear": (leaf,) * 2}.get(kind, (leaf,))
        with torch.autocast("cpu", dtype, enabled=enabled):
            results = layer(*given)
        first = results if isinstance(results, torch.Tensor) else results[0]
        found.append((results, torch.autograd.grad(first.square().sum(), [leaf, *layer.parameters()])))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
