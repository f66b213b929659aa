"""Ternary and binary weights: a straight-through estimator around what is packed and multiplied."""

import numpy as np
import pytest
import torch
from torch import nn

import fewbits as fb
from fewbits.nn import RoundingObserver, prepare

FORMATS = {"ternary": ("ternary_tensor", "twn"), "binary": ("binary_tensor", "absmean")}


def made(recipe: str, observer: RoundingObserver | None = None) -> tuple[nn.Linear, nn.Linear]:
    """Return a layer, and the same one prepared."""
    torch.manual_seed(0)
    plain, layer = nn.Linear(70, 9), nn.Linear(70, 9)
    layer.load_state_dict(plain.state_dict())
    (narrow,) = prepare(nn.Sequential(layer), recipe, observer=observer)
    assert isinstance(narrow, nn.Linear)
    return plain, narrow


@pytest.mark.parametrize("recipe", FORMATS)
def test_the_packed_weights_multiply_as_the_layer_did(recipe: str) -> None:
    plain, layer = made(recipe)
    x = torch.randn(5, 70)
    name, rule = FORMATS[recipe]
    q = fb.quantize(plain.weight.detach(), name, scale_rule=rule)
    exact = fb.matvec(q, x, activation="int8_channel") + plain.bias
    assert torch.allclose(layer(x), exact, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(plain(x), exact, rtol=1e-2, atol=1e-2)  # the control


@pytest.mark.parametrize("recipe", FORMATS)
def test_gradients_go_straight_through_the_rounding(recipe: str) -> None:
    plain, layer = made(recipe)
    x, g = torch.randn(5, 70, requires_grad=True), torch.randn(5, 9)
    of_x, of_weight = torch.autograd.grad(layer(x), (x, layer.weight), g)
    name, rule = FORMATS[recipe]
    rounded = fb.fake_quantize(plain.weight.detach(), name, scale_rule=rule)
    assert torch.allclose(of_x, g @ rounded, rtol=1e-5, atol=1e-5)
    assert torch.allclose(of_weight, g.t() @ x.detach(), rtol=1e-5, atol=1e-5)
    assert len(np.unique(rounded.numpy())) == (3 if recipe == "ternary" else 2)


@pytest.mark.parametrize("recipe", FORMATS)
def test_values_beyond_a_mean_are_not_called_saturated(recipe: str) -> None:
    observer = RoundingObserver(1)
    _, layer = made(recipe, observer)
    layer(torch.randn(5, 70))
    records, warnings = observer.drained()
    weight = next(seen for seen in records if seen["role"] == "forward_weight")
    assert weight["saturated_fraction"] == 0
    assert weight["flushed_fraction"] == (pytest.approx(0.4, abs=0.2) if recipe == "ternary" else 0)
    assert warnings == []
