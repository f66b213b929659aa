"""Schedules: warm-up, precision switching on gradient diversity, assignment with promotion."""

import pytest
import torch
from torch import nn

from fewbits.nn import prepare
from fewbits.recipes import RECIPES
from fewbits.train.schedules import Assigned, Muppet, WarmUp, schedule
from fewbits.train.schedules.muppet import LEVELS, diversity


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))


def test_diversity_of_gradients_at_right_angles_and_of_equal_ones() -> None:
    a, b, c = torch.eye(3).unbind()
    assert diversity([[a], [b], [c]]) == pytest.approx(1)
    assert diversity([[a], [a], [a]]) == pytest.approx(1 / 3)


def test_precision_goes_up_when_gradients_grow_alike_and_never_down() -> None:
    recipe = RECIPES["muppet"]
    model = prepare(_model(), recipe)
    found = schedule(model, recipe, 20 * 20)
    assert isinstance(found, Muppet)
    levels = []
    weight = model[0].weight
    for step in range(400):
        # Gradients at right angles at first, and all alike later.
        weight.grad = torch.zeros_like(weight)
        weight.grad[0, step // 20 % 16 if step < 100 else 0] = 1
        found.after_backward()
        found.after_step()
        levels.append(found.level)
    assert levels[99] == 0
    assert levels == sorted(levels)
    assert 0 < levels[-1] < len(LEVELS)
    state = found.state_dict()
    again = schedule(prepare(_model(), recipe), recipe, 400)
    again.load_state_dict(state)
    assert again.state_dict() == state


def test_gradients_that_stay_diverse_keep_the_lowest_precision() -> None:
    recipe = RECIPES["muppet"]
    model = prepare(_model(), recipe)
    found = schedule(model, recipe, 400)
    for step in range(400):
        model[0].weight.grad = torch.zeros_like(model[0].weight)
        model[0].weight.grad[step // 20 % 64, 0] = 1
        found.after_backward()
        found.after_step()
    assert isinstance(found, Muppet)
    assert found.level == 0


def test_warm_up_is_plain_and_then_narrow() -> None:
    recipe = RECIPES["posit8"]
    model = prepare(_model(), recipe)
    found = schedule(model, recipe, 50)
    assert isinstance(found, WarmUp)
    seen = []
    for _ in range(10):
        seen.append(model[0].rules.recipe.forward_weight is not None)
        found.after_step()
    assert seen == [False] * 5 + [True] * 5


def test_an_outlier_promotes_the_layer_it_meets_and_no_other() -> None:
    recipe = RECIPES["assigned"]
    model = prepare(_model(), recipe)
    found = schedule(model, recipe, 50)
    assert isinstance(found, Assigned)
    assert found.low == {"0", "2"}
    model(torch.randn(32, 16))
    assert found.promoted == []
    x = torch.randn(32, 16)
    x[:, 0] = 1e4  # one value in sixteen; the largest of the format is 30
    model(x)
    assert found.promoted == ["0"]
    assert str(model[0].rules.recipe.forward_activation) == "fp16_e6m9"
    assert str(model[2].rules.recipe.forward_activation) == "hfp8_e4m3"
    again = schedule(prepare(_model(), recipe), recipe, 50)
    again.load_state_dict(found.state_dict())
    assert again.state_dict() == found.state_dict()
