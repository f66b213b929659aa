"""torch.func and forward mode through prepared models, held against models written with sums and products."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

import fewbits as fb
from fewbits.errors import ArgumentError
from fewbits.nn import LayerPrecision, straight_through
from fewbits.nn.layers import DotProductAttention
from fewbits.optim import AdamW
from fewbits.recipes import recipe as read
from fewbits.recipes.catalogue import RECIPES

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")

WIDE = "mx:weight=mxfp6_e3m2,activation=mxfp6_e3m2,gradient=mxfp6_e3m2,vector=fp32"
FMT = "mxfp6_e3m2"


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads, self.dot = nn.Linear(8, 24), DotProductAttention()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.heads(x).chunk(3, -1)
        found: torch.Tensor = self.dot(q, k, v)
        return found


MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(40, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(4, 40)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.Tanh()), torch.randn(2, 4, 5, 5)),
    "transposed": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1), torch.randn(2, 4, 5)),
    "attention": (Attention, torch.randn(2, 5, 8)),
    "multihead": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        torch.randn(2, 5, 8),
    ),
    "recurrent": (lambda: Last(nn.GRU(6, 5)), torch.randn(3, 2, 6)),
}


class Last(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x)[0]
        return found


def made(name: str, recipe: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    create, x = MODELS[name]
    return fb.prepare(create(), recipe), x


def loss_of(model: nn.Module, x: torch.Tensor) -> Callable[[dict[str, Any]], torch.Tensor]:
    return lambda parameters: (functional_call(model, parameters, (x,)) ** 2).sum()


@pytest.mark.parametrize(
    ("name", "recipe"),
    [(name, recipe) for recipe in ("mxfp8", WIDE, "fp16-no-scaling") for name in MODELS]
    + [(name, "add-multiply") for name in ("linear", "convolution", "attention")],
)
def test_the_gradient_is_that_of_a_backward_pass_bit_for_bit(name: str, recipe: str) -> None:
    model, x = made(name, recipe)
    loss = loss_of(model, x)
    found = grad(loss)({k: p.detach() for k, p in model.named_parameters()})
    of_x, given = grad(lambda t: (model(t) ** 2).sum())(x), x.clone().requires_grad_()
    (model(given) ** 2).sum().backward()
    assert given.grad is not None
    assert torch.equal(of_x, given.grad)
    for key, p in model.named_parameters():
        assert p.grad is not None
        assert torch.equal(found[key], p.grad), key


@pytest.mark.parametrize(
    "recipe", [name for name, r in RECIPES.items() if "stochastic" not in str(r) and not r.autocast]
)
def test_every_recipe_has_gradients_for_each_of_a_batch(recipe: str) -> None:
    model, x = made("linear", recipe)
    parameters = {k: p.detach() for k, p in model.named_parameters()}

    def one(row: torch.Tensor) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = grad(loss_of(model, row[None]))(parameters)
        return found

    together = vmap(one)(x)
    for i, row in enumerate(x):
        for key, g in one(row).items():
            torch.testing.assert_close(together[key][i], g, rtol=1e-2, atol=1e-4)


def straight(x: torch.Tensor, axis: int) -> torch.Tensor:
    """Round with the derivative of the identity, by detaching."""
    return x + (fb.fake_quantize(x.detach(), FMT, axis=axis) - x).detach()


def by_hand(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return the gradient in x of sum(linear(x, w) ** 2) as a recipe computes it, from plain operations."""
    y = straight(x, 1) @ straight(w, 1).t()
    return straight(2 * y, 1) @ straight(w, 0)


def test_what_is_not_rounded_is_a_copy_too() -> None:
    """Who writes to an operand does not write to the activation."""
    x = torch.randn(4, 8)
    for recipe in ("fp32", "mxfp8"):
        operand = straight_through.rounded(x, LayerPrecision(read(recipe)), "forward_activation", 1)
        assert operand.data_ptr() != x.data_ptr()


def test_second_derivatives_are_those_of_the_backward_pass() -> None:
    layer = fb.prepare(nn.Linear(40, 8, bias=False), WIDE)
    w, x, v = layer.weight.detach(), torch.randn(4, 40), torch.randn(4, 40)
    gradient = grad(lambda t: (layer(t) ** 2).sum())
    torch.testing.assert_close(gradient(x), by_hand(x, w))
    whole = torch.autograd.functional.jacobian(lambda t: by_hand(t, w), x)
    torch.testing.assert_close(hessian(lambda t: (layer(t) ** 2).sum())(x), whole)  # forward over reverse
    expected = torch.einsum("ijkl,kl->ij", whole, v)
    torch.testing.assert_close(jvp(gradient, (x,), (v,))[1], expected)
    # Reverse over reverse: the gradient that comes back to the layer is rounded as any.
    back, columns = grad(lambda t: (gradient(t) * v).sum())(x), fb.fake_quantize(w, FMT, axis=0)
    torch.testing.assert_close(back, fb.fake_quantize(2 * v @ columns.t(), FMT, axis=1) @ columns)


@pytest.mark.parametrize("name", MODELS)
def test_forward_mode_is_near_that_of_the_wide_model_where_little_is_rounded(name: str) -> None:
    """TF32 rounds little, so torch's own derivatives of the wide model are the yardstick."""
    model, x = made(name, "fp32")
    narrow, _ = made(name, "tf32")
    v = torch.randn_like(x)
    with sdpa_kernel(SDPBackend.MATH):  # torch's fused one has no forward mode
        expected = jvp(lambda t: (model(t) ** 2).sum(), (x,), (v,))[1]
    found = jvp(lambda t: (narrow(t) ** 2).sum(), (x,), (v,))[1]
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    with forward_ad.dual_level():
        dual = (narrow(forward_ad.make_dual(x, v)) ** 2).sum()
        tangent = forward_ad.unpack_dual(dual).tangent
    torch.testing.assert_close(tangent, found)
    assert found != 0


def test_forward_mode_in_a_parameter() -> None:
    model, x = made("linear", WIDE)
    parameters = {k: p.detach() for k, p in model.named_parameters()}
    along = {k: torch.randn_like(p) for k, p in parameters.items()}
    _, found = jvp(loss_of(model, x), (parameters,), (along,))
    first, last = (parameters[f"{i}.weight"] for i in (0, 2))

    def wide(d: torch.Tensor) -> torch.Tensor:
        a, b = first + d * along["0.weight"], last + d * along["2.weight"]
        h = torch.tanh(straight(x, 1) @ straight(a, 1).t() + parameters["0.bias"] + d * along["0.bias"])
        y = straight(h, 1) @ straight(b, 1).t() + parameters["2.bias"] + d * along["2.bias"]
        return (y**2).sum()

    expected = torch.autograd.functional.jacobian(wide, torch.zeros(()))
    torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of torch, while it traces
@pytest.mark.slow
def test_compiled_derivatives_are_the_same() -> None:
    model, x = made("linear", "mxfp8")

    def loss(t: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = (model(t) ** 2).sum()
        return found

    torch._dynamo.reset()
    for derivative in (grad(loss), lambda t: jvp(loss, (t,), (t,))[1]):
        torch.testing.assert_close(torch.compile(derivative, backend="aot_eager")(x), derivative(x))


def twice(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the gradients of a penalty on the gradients in parameters and input, by create_graph."""
    wanted = [*model.parameters(), x]
    first = torch.autograd.grad((model(x) ** 2).sum(), wanted, create_graph=True)
    return torch.autograd.grad(sum((g**2).sum() for g in first), wanted)


@pytest.mark.parametrize("recipe", ["mxfp8", WIDE, "mx9"])
@pytest.mark.parametrize("name", MODELS)
def test_create_graph_gives_the_derivatives_of_torch_func(name: str, recipe: str) -> None:
    create, x = MODELS[name]
    model = fb.prepare(create(), recipe, pack_activations=False)
    given = {**{k: p.detach() for k, p in model.named_parameters()}, "": x}

    def loss(of: dict[str, torch.Tensor]) -> torch.Tensor:
        own = {k: p for k, p in of.items() if k}
        found: torch.Tensor = (functional_call(model, own, (of[""],)) ** 2).sum()
        return found

    with sdpa_kernel(SDPBackend.MATH):  # torch's fused one has no second derivatives
        expected = grad(lambda of: sum((g**2).sum() for g in grad(loss)(of).values()))(given)
        found = twice(model, x.clone().requires_grad_())
    for one, other in zip(found, expected.values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_create_graph_gives_the_derivatives_of_the_wide_model_where_nothing_is_rounded(name: str) -> None:
    narrow, x = made(name, "fp32")
    torch.manual_seed(0)
    wide = MODELS[name][0]()
    with sdpa_kernel(SDPBackend.MATH):
        for one, other in zip(
            twice(narrow, x.clone().requires_grad_()), twice(wide, x.clone().requires_grad_()), strict=True
        ):
            torch.testing.assert_close(one, other)


def test_create_graph_gives_second_derivatives_of_the_backward_pass() -> None:
    layer = fb.prepare(nn.Linear(40, 8, bias=False), WIDE, pack_activations=False)
    x, v = torch.randn(4, 40, requires_grad=True), torch.randn(4, 40)
    (first,) = torch.autograd.grad((layer(x) ** 2).sum(), x, create_graph=True)
    torch.testing.assert_close(first, by_hand(x, layer.weight))
    (back,) = torch.autograd.grad((first * v).sum(), x)
    columns = fb.fake_quantize(layer.weight.detach(), FMT, axis=0)
    torch.testing.assert_close(back, fb.fake_quantize(2 * v @ columns.t(), FMT, axis=1) @ columns)


def test_create_graph_is_refused_where_it_would_lose_its_graph() -> None:
    for name in ("linear", "convolution", "attention"):
        model, x = made(name, "mxfp8")
        with pytest.raises(ArgumentError, match=r"create_graph=True.*pack_activations=False.*torch\.func"):
            twice(model, x.clone().requires_grad_())
    model = fb.prepare(nn.Linear(40, 8), "fp8-lm", pack_activations=False)
    optimizer = AdamW(model.parameters(), recipe="fp8-lm")
    loss = (model(torch.randn(4, 40)) ** 2).sum()
    with pytest.raises(ArgumentError, match=r"create_graph=True.*torch\.autograd\.grad"):
        loss.backward(create_graph=True)
    assert optimizer is not None  # whose hooks pack
