"""Convolutions, embeddings and bilinear layers: without rounding they are torch's."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fewbits as fb
from fewbits.errors import ArgumentError
from fewbits.nn import DotProductAttention, layer_precision, prepare
from tests.nn.prepared_layers import narrowed

# Torch's own, which the narrow layer is compared with, says so once.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")

SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"stride": 2, "padding": 1, "bias": False},
    {"padding": "same", "kernel_size": 4},
    {"padding": "same", "kernel_size": 4, "dilation": 2, "padding_mode": "circular"},
    {"padding": "valid", "groups": 2},
    {"padding": 2, "padding_mode": "reflect", "groups": 4, "dilation": 2},
    {"padding": 2, "padding_mode": "replicate", "stride": 3},
    {"padding": 1, "padding_mode": "zeros", "kernel_size": 1},
)


def gradients(layer: nn.Module, *given: torch.Tensor) -> list[torch.Tensor]:
    """Return the result and the gradients of a loss that weighs it unevenly."""
    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in given]
    y = layer(*leaves)
    loss = (y.float() * torch.linspace(-1, 2, y.numel()).reshape(y.shape)).sum()
    wanted = [x for x in leaves if x.requires_grad] + list(layer.parameters())
    return [y, *torch.autograd.grad(loss, wanted)]


def same(layer: nn.Module, *given: torch.Tensor, **tolerance: float) -> None:
    found = gradients(narrowed(copy.deepcopy(layer)), *given)
    torch.testing.assert_close(found, gradients(layer, *given), **tolerance)


@pytest.mark.parametrize("how", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d])
def test_without_rounding_a_convolution_is_torchs(kind: type[nn.Module], how: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = kind(4, 8, **{"kernel_size": 3} | how)
    size = (9,) if kind is nn.Conv1d else (9, 11)
    same(layer, torch.randn(2, 4, *size), rtol=1e-5, atol=1e-4)
    same(layer, torch.randn(4, *size), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("how", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d])
def test_a_convolution_by_addition_of_powers_of_two_is_exact(
    kind: type[nn.Module], how: dict[str, Any]
) -> None:
    """A sum of bit patterns is the product where one factor is a power of two."""
    torch.manual_seed(0)
    layer = kind(4, 8, **{"kernel_size": 3} | how)
    x = torch.exp2(torch.randint(-2, 3, (2, 4, 9) if kind is nn.Conv1d else (2, 4, 9, 11)).float())
    y = layer(x)
    narrow = narrowed(copy.deepcopy(layer), "add-multiply")
    torch.testing.assert_close(narrow(x), y, rtol=1e-5, atol=1e-5)
    for p, q in zip(layer.parameters(), narrow.parameters(), strict=True):
        p.data = q.data = torch.exp2(torch.randint(-2, 3, p.shape).float())
    x.requires_grad_()
    g = torch.exp2(torch.randint(-2, 3, y.shape).float())
    for of_narrow, of_torch in zip(
        torch.autograd.grad(narrow(x), [x, *narrow.parameters()], g),
        torch.autograd.grad(layer(x), [x, *layer.parameters()], g),
        strict=True,
    ):
        torch.testing.assert_close(of_narrow, of_torch)


TRANSPOSED: tuple[dict[str, Any], ...] = (
    {},
    {"stride": 2, "padding": 1, "output_padding": 1, "bias": False},
    {"groups": 2, "dilation": 2},
)


@pytest.mark.parametrize("how", TRANSPOSED, ids=str)
@pytest.mark.parametrize("kind", [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d])
def test_without_rounding_a_transposed_convolution_is_torchs(
    kind: type[nn.Module], how: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    layer = kind(4, 6, **{"kernel_size": 3} | how)
    size = (5, 4, 3)[: len(layer.kernel_size)]
    same(layer, torch.randn(2, 4, *size), rtol=1e-5, atol=1e-4)
    same(layer, torch.randn(4, *size), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_a_transposed_convolution_takes_the_size_of_its_result(batch: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer, x = nn.ConvTranspose2d(4, 6, 3, stride=2), torch.randn(*batch, 4, 5, 5)
    narrow = narrowed(copy.deepcopy(layer))
    assert narrow(x).shape[-2:] == (11, 11)
    torch.testing.assert_close(narrow(x, [12, 11]), layer(x, [12, 11]), rtol=1e-5, atol=1e-4)


def test_without_rounding_a_convolution_over_three_axes_is_torchs() -> None:
    torch.manual_seed(0)
    layer = nn.Conv3d(4, 6, (3, 2, 1), stride=2, padding=1, padding_mode="circular", groups=2)
    same(layer, torch.randn(2, 4, 5, 6, 3), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", [nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d])
def test_a_convolution_that_cannot_be_computed_by_addition_is_refused(kind: type[nn.Module]) -> None:
    with pytest.raises(ArgumentError, match="have no form without multiplications"):
        prepare(nn.Sequential(nn.Linear(2, 2), kind(2, 2, 1)), "add-multiply")


@pytest.mark.parametrize("how", [{}, {"bias": False}], ids=str)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
def test_without_rounding_a_bilinear_layer_is_torchs(how: dict[str, Any], batch: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    same(nn.Bilinear(5, 7, 3, **how), torch.randn(*batch, 5), torch.randn(*batch, 7), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((3, 5), (1, 7)),
        ((3, 5), (7,)),
        ((5,), (3, 7)),
        ((2, 3, 5), (3, 7)),
        ((3, 5), (2, 3, 7)),
        ((3, 5), (4, 7)),
        ((3, 5), (3, 1)),
        ((3, 7), (3, 5)),
    ],
)
def test_a_bilinear_layer_refuses_what_torchs_does(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    layer, given = nn.Bilinear(5, 7, 3), (torch.randn(first), torch.randn(second))
    with pytest.raises(RuntimeError):
        layer(*given)
    with pytest.raises(
        ArgumentError, match=r"have shapes .*; expected \(..., 5\) and \(..., 7\) with the same"
    ):
        prepare(layer, "mxfp8")(*given)


def test_a_rounded_bilinear_layer_sums_over_rounded_operands() -> None:
    torch.manual_seed(0)
    layer = narrowed(nn.Bilinear(33, 35, 4, bias=False), "mxfp4w-mxfp6")
    x, z = torch.randn(6, 33), torch.randn(6, 35)
    weight = fb.fake_quantize(layer.weight.detach(), "mxfp4", axis=1).double()
    a = fb.fake_quantize(x.bfloat16(), "mxfp6_e3m2").double()
    t = torch.einsum("bi,oij->boj", a, weight).bfloat16()
    wanted = torch.einsum(
        "boj,bj->bo",
        fb.fake_quantize(t, "mxfp6_e3m2").double(),
        fb.fake_quantize(z.bfloat16(), "mxfp6_e3m2").double(),
    )
    torch.testing.assert_close(layer(x, z).double(), wanted, rtol=2**-7, atol=2**-7)


EMBEDDINGS: tuple[dict[str, Any], ...] = (
    {},
    {"padding_idx": 2},
    {"max_norm": 0.7, "norm_type": 1.0},
    {"scale_grad_by_freq": True},
    {"sparse": True},
)


@pytest.mark.parametrize(
    ("torchs", "bfloat16", "tiles", "ours"),
    [
        (False, False, False, True),
        (False, True, False, False),
        (True, False, False, False),
        (True, True, True, True),
    ],
)
def test_layers_multiply_by_panels_without_units_and_with_tiles(
    torchs: bool, bfloat16: bool, tiles: bool, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: torchs)
    monkeypatch.setattr(layer_precision.kernels, "has_bfloat16_products", lambda: bfloat16)
    monkeypatch.setattr(layer_precision.kernels, "has_tiles", lambda: tiles)
    assert layer_precision.goes_by_panels(torch.ones(2, 2)) == ours


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("sizes", [(0, 4), (4, 0)])
@pytest.mark.parametrize("chosen", ["fp32", "mxfp8", "mx9:vector=fp32", "ternary"])
@pytest.mark.parametrize("by_panels", [False, True])
def test_a_linear_layer_without_features_is_torchs(
    sizes: tuple[int, int], chosen: str, by_panels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fewbits.nn.layer_precision._has_fast_bfloat16", lambda: not by_panels)
    layer = nn.Linear(*sizes)
    x = torch.randn(2, 3, sizes[0], requires_grad=True)
    y = narrowed(copy.deepcopy(layer), chosen)(x)
    torch.testing.assert_close(y.float(), layer(x), rtol=1e-2, atol=1e-3)  # the bias, in bfloat16
    y.sum().backward()
    assert not x.grad.any()


@pytest.mark.parametrize("how", EMBEDDINGS, ids=str)
def test_without_rounding_an_embedding_is_torchs(how: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = nn.Embedding(7, 5, **how)
    narrow = narrowed(copy.deepcopy(layer))
    tokens = torch.tensor([[1, 2, 2], [6, 1, 1]])
    for one in (layer, narrow):
        one(tokens).square().sum().backward()
    assert torch.equal(narrow.weight, layer.weight)
    assert narrow.weight.grad.is_sparse == bool(how.get("sparse"))
    torch.testing.assert_close(narrow.weight.grad.to_dense(), layer.weight.grad.to_dense())


def test_an_embedding_gives_rounded_rows_and_passes_their_gradient_straight_through() -> None:
    torch.manual_seed(0)
    layer = narrowed(nn.Embedding(5, 33), "mxfp4w-mxfp6")
    tokens = torch.tensor([4, 0, 4])
    y = layer(tokens)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y.float(), fb.fake_quantize(layer.weight.detach(), "mxfp4")[tokens])
    y.sum().backward()
    assert layer.weight.grad[:, 0].tolist() == [1, 0, 0, 0, 2]


BAGS: tuple[dict[str, Any], ...] = (
    {"mode": "sum"},
    {"mode": "mean", "padding_idx": 2},
    {"mode": "max"},
    {"mode": "sum", "max_norm": 0.7, "include_last_offset": True},
    {"mode": "mean", "sparse": True},
)


@pytest.mark.parametrize("how", BAGS, ids=str)
def test_without_rounding_a_bag_of_embeddings_is_torchs(how: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = nn.EmbeddingBag(7, 5, **how)
    narrow = narrowed(copy.deepcopy(layer))
    tokens, offsets = torch.tensor([1, 2, 2, 6, 1, 1]), torch.tensor([0, 2, 6] if len(how) == 3 else [0, 2])
    weights = torch.rand(6) if how == {"mode": "sum"} else None
    found = [one(tokens, offsets, weights) for one in (layer, narrow)]
    torch.testing.assert_close(found[1], found[0])
    for y in found:
        y.square().sum().backward()
    torch.testing.assert_close(narrow.weight.grad.to_dense(), layer.weight.grad.to_dense())
    torch.testing.assert_close(narrow(tokens.reshape(2, 3)), layer(tokens.reshape(2, 3)))


@pytest.mark.parametrize("chosen", ["mxfp4w-mxfp6", "bf16-only:weight=mxfp4"])
def test_a_bag_sums_rounded_rows_in_float32(chosen: str) -> None:
    torch.manual_seed(0)
    layer = nn.EmbeddingBag(5, 33, mode="sum")
    model = prepare(nn.Sequential(layer), chosen)
    table = fb.fake_quantize(layer.weight.detach(), "mxfp4").double()
    wanted = table[[4, 0, 4]].sum(0).bfloat16()
    assert torch.equal(model(torch.tensor([[4, 0, 4]]))[0], wanted.float())


@pytest.mark.parametrize("chosen", ["mxfp6", "mx9"])
def test_tied_weights_stay_tied(chosen: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 33), nn.Linear(33, 7))
    model[1].weight = model[0].weight
    prepare(model, chosen)
    assert model[1].weight is model[0].weight
    assert len(list(model.parameters())) == 2
    before = model[0].weight.detach().clone()
    model(torch.tensor([1, 3])).logsumexp(-1).sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    assert not torch.equal(model[0].weight, before)
    assert model[1].weight is model[0].weight


LAYERS_WITHOUT_BIAS: list[tuple[Callable[[], nn.Module], tuple[int, ...]]] = [
    (lambda: nn.Linear(8, 6, bias=False), (8,)),
    (lambda: nn.Linear(8, 6, bias=False), (2, 3, 8)),
    (lambda: nn.Conv1d(8, 6, 2, bias=False), (2, 8, 5)),
    (lambda: nn.MultiheadAttention(8, 2, bias=False), (3, 2, 8)),
    (DotProductAttention, (2, 3, 8)),
]


@pytest.mark.parametrize("chosen", ["mxfp8", "tf32", "add-multiply"])
@pytest.mark.parametrize("transformed", [False, True])
def test_what_a_layer_returns_may_be_changed_in_place(chosen: str, transformed: bool) -> None:
    """As torch's own may; results are those of the same change in new memory."""
    for make, size in LAYERS_WITHOUT_BIAS:
        torch.manual_seed(0)
        layer = prepare(nn.ModuleList([make()]), chosen)[0]
        x, copies = torch.randn(size), 1 if isinstance(layer, (nn.Linear, nn.Conv1d)) else 3

        def loss(x: torch.Tensor, in_place: bool, layer: nn.Module = layer, copies: int = copies) -> Any:
            y = layer(*[x] * copies)
            y = y[0] if isinstance(y, tuple) else y
            y = y.mul_(3).relu_() if in_place else (y * 3).relu()
            return y.float().square().sum()

        if transformed:
            found, wanted = (torch.func.grad(loss)(x, in_place) for in_place in (True, False))
        else:
            x.requires_grad_()
            found, wanted = (torch.autograd.grad(loss(x, place), [x])[0] for place in (True, False))
        assert wanted.any()
        assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("layer", "size", "said"),
    [
        (nn.Linear(4, 2), (), r"0 was given a tensor without axes; expected \(..., 4\)"),
        (nn.Conv1d(4, 2, 1), (2, 6, 5), r"0 was given 6 channels, of shape \(2, 6, 5\); expected 4"),
        (nn.Conv2d(4, 2, 1, groups=2), (2, 5, 3, 3), "0 was given 5 channels, .*; expected 4"),
        (nn.Conv2d(4, 2, 1, groups=2), (2, 8, 3, 3), "0 was given 8 channels, .*; expected 4"),
        (nn.ConvTranspose1d(4, 6, 1, groups=2), (6, 3), "0 was given 6 channels, .*; expected 4"),
    ],
)
def test_an_input_that_does_not_fit_is_refused_with_what_was_expected(
    layer: nn.Module, size: tuple[int, ...], said: str
) -> None:
    prepared = prepare(nn.ModuleList([layer]), "mxfp6")[0]
    with pytest.raises(ArgumentError, match=said):
        prepared(torch.ones(size))
