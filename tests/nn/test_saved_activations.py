"""What a layer keeps of its input for the backward pass is packed, and no bit of any result changes by it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fewbits.nn import DotProductAttention, prepare
from fewbits.nn.saved_activations import SavedActivation, _saves
from fewbits.recipes.role_format import read_role_format
from tests.nn.graphs import kept_bytes, of_graph
from tests.nn.test_prepare import Every

RECIPES = (
    "mxfp4",
    "mxfp6",
    "mx9",
    "fp8-lm-o1",  # one scale for the tensor
    "posit16",  # a shift
    "fixed16",  # rounded at random
    "fp32:activation=nvfp4",  # outer scales
    "fp32:dw_activation=fp8_e4m3,forward_activation=mxfp8_e5m2",
    "add-multiply",  # nothing to pack
)


def kept_by(model: nn.Module, x: torch.Tensor) -> int:
    """Return the bytes that the graph holds on to, but for parameters and the input."""
    return kept_bytes(model(x).float().square().sum(), (*model.parameters(), x))


def results(make: Callable[[], nn.Module], chosen: str, packs: bool, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = prepare(make(), chosen, pack_activations=packs)
    loss = model(x).float().square().mean()
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(4, 8, 3, groups=2), nn.ConvTranspose2d(8, 4, 2)
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.norm(self.up(self.down(x).relu())).mean((2, 3)))
        return y


@pytest.mark.parametrize("chosen", RECIPES)
def test_losses_and_gradients_are_those_of_activations_kept_wide(chosen: str) -> None:
    cases: list[tuple[Callable[[], nn.Module], torch.Tensor]] = [(Every, torch.arange(10).reshape(2, 5))]
    if chosen != "add-multiply":
        cases.append((Pictures, torch.randn(5, 4, 6, 6)))
    for make, x in cases:
        torch.testing.assert_close(
            results(make, chosen, True, x), results(make, chosen, False, x), rtol=0, atol=0, equal_nan=False
        )


class Wide(nn.Module):
    """Layers whose input nobody but they keep."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return y


@pytest.mark.parametrize(
    ("chosen", "bits", "wide"),
    [("mxfp4", 4.25, 16), ("mxfp6", 6.25, 16), ("mxfp8", 8.25, 16), ("mx9", 9, 16), ("fixed16", 16, 32)],
)
def test_a_layers_input_is_kept_in_the_bits_of_its_format(chosen: str, bits: float, wide: int) -> None:
    x = torch.randn(128, 256)
    found = [kept_by(prepare(Wide(), chosen, pack_activations=packs), x.clone()) for packs in (True, False)]
    # Where float32 flows the input of the first layer is x itself; the loss keeps its own float32 operand.
    values, inputs = x.numel(), 3 if wide == 32 else 4
    assert found[0] == 4 * values * bits / 8 + 4 * values
    assert found[1] == inputs * values * wide / 8 + 4 * values


def test_layers_of_one_input_keep_it_once() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(64, 64)
            self.q, self.k, self.v = (nn.Linear(64, 64) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.body(x)
            y: torch.Tensor = self.q(h) + self.k(h) + self.v(h)
            return y

    model = prepare(Heads(), "mxfp8")
    codes = [
        t for t in of_graph(model(torch.randn(64, 64)).sum()) if t.dtype == torch.uint8 and t.numel() == 4096
    ]
    assert len(codes) == 4
    assert len({t.untyped_storage().data_ptr() for t in codes}) == 2


@pytest.mark.parametrize(("unknown_to_torch", "graded"), [(False, True), (True, False), (True, True)])
def test_a_changed_input_is_packed_anew(unknown_to_torch: bool, graded: bool) -> None:
    layer, x = prepare(nn.Linear(64, 64), "mxfp8:vector=fp32"), torch.randn(64, 64)
    x.requires_grad_(graded)
    (before,) = torch.autograd.grad(layer(x).sum(), [layer.weight])
    kept = layer(x)  # by its graph, so that what was packed is still there
    if unknown_to_torch:  # as by a loader that fills its buffer again
        x.detach().numpy()[...] *= -3
    else:
        with torch.no_grad():
            x.mul_(-3)
    (after,) = torch.autograd.grad(layer(x).sum(), [layer.weight])
    (fresh,) = torch.autograd.grad(layer(x.clone()).sum(), [layer.weight])
    assert torch.equal(after, fresh)
    assert torch.equal(torch.autograd.grad(kept.sum(), [layer.weight])[0], before)
    assert not torch.equal(after, before)


def test_what_an_activation_function_keeps_anyway_is_not_kept_twice() -> None:
    def made() -> nn.Module:
        return nn.Sequential(
            nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8)
        )

    x = torch.randn(128, 256)
    packed, wide = (kept_by(prepare(made(), "mxfp6", pack_activations=p), x) for p in (True, False))
    assert packed <= wide


@pytest.mark.parametrize("start", [nn.ReLU(), nn.GELU()])
def test_recomputed_activations_are_kept_the_same_way(start: nn.Module) -> None:
    torch.manual_seed(0)
    model = prepare(nn.Sequential(nn.Linear(40, 40), start, nn.Linear(40, 40), nn.Linear(40, 4)), "mxfp6")
    x, found = torch.randn(33, 40), []
    for again in (False, True):
        h = start(model[0](x))
        h = checkpoint(model[2:], h, use_reentrant=False) if again else model[2:](h)
        found.append(torch.autograd.grad(h.float().sum(), list(model.parameters())))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_nothing_is_packed_where_no_gradient_will_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        pytest.fail("an activation was kept")

    model = prepare(nn.Sequential(nn.Linear(40, 40), nn.Conv1d(3, 3, 1), DotProductAttention()), "mxfp6")
    for place in ("products", "convolution"):
        monkeypatch.setattr(f"fewbits.nn.{place}.save_activation", none)
    x = torch.randn(2, 3, 40)
    with torch.no_grad():
        y = model[1](model[0](x))
        model[2](y, y, y)
    model.requires_grad_(False)
    model[1](model[0](x.requires_grad_())).sum().backward()  # gradients of the input need no input


@pytest.mark.parametrize(("format", "saved"), [("fp16", False), ("fp8_e4m3", True), ("mxfp8_e4m3", True)])
def test_what_takes_no_less_room_packed_is_kept_as_it_is(format: str, saved: bool) -> None:
    role = read_role_format(format)
    assert role is not None
    x = torch.zeros(4, 32, dtype=torch.bfloat16)
    how = SavedActivation(None, "dw_activation", role, 1, x.shape, x.dtype, None, True)
    assert _saves(x, role, how) is saved
