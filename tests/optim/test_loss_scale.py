"""The loss scale: PyTorch's own scaler where it does, and what recipes need beyond it."""

from typing import Any

import pytest
import torch
from torch import nn

from fewbits.errors import ArgumentError
from fewbits.optim import SGD, LossScaler, scaler
from fewbits.recipes import RECIPES, LossScaling, Recipe

FP32 = RECIPES["fp32"]
PACKED = FP32.extended(held_gradient="fp8_e5m2", scaling=LossScaling(8.0, growth_interval=3))


def turn(
    scale: torch.amp.GradScaler, optimizer: SGD, w: nn.Parameter, gradient: float, *, unscale: bool = False
) -> None:
    """Go one step with a gradient of one number."""
    optimizer.zero_grad()
    scale.scale((w * gradient).sum()).backward()
    if unscale:
        scale.unscale_(optimizer)
    scale.step(optimizer)
    scale.update()


@pytest.mark.parametrize("recipe", ["amp-fp16", "assigned", PACKED])
def test_a_dynamic_scale_is_pytorchs_own_for_packed_gradients_too(recipe: str | Recipe) -> None:
    found = scaler(recipe)
    assert type(found) is torch.amp.GradScaler
    assert found.is_enabled()
    assert found.get_scale() == (8.0 if recipe is PACKED else 65536.0)


@pytest.mark.parametrize("name", ["fp32", "fp8-lm", "fp16-no-scaling"])
def test_without_scaling_the_scaler_is_off(name: str) -> None:
    found = scaler(name)
    assert type(found) is torch.amp.GradScaler
    assert not found.is_enabled()


@pytest.mark.parametrize("recipe", ["fp8-stochastic", "fp16-master-static", "fp16-only"])
def test_floors_a_static_scale_and_fp16_gradients_take_our_own(recipe: str) -> None:
    assert type(scaler(recipe)) is LossScaler


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("held", [None, "fp8_e5m2", "fixed16_f10"])
def test_an_overflow_skips_the_step_and_halves_the_scale_and_quiet_steps_double_it(
    held: str | None, unscale: bool
) -> None:
    recipe = FP32.extended(held_gradient=held, scaling=LossScaling(8.0, growth_interval=3))
    w = nn.Parameter(torch.ones(4))
    optimizer, scale = SGD([w], 0.25, recipe=recipe), scaler(recipe)
    turn(scale, optimizer, w, torch.inf, unscale=unscale)
    assert torch.equal(w, torch.ones(4))
    assert scale.get_scale() == 4.0
    for _ in range(3):
        turn(scale, optimizer, w, 1.0, unscale=unscale)
    assert torch.equal(w, torch.full((4,), 0.25))
    assert scale.get_scale() == 8.0


def test_fp16_gradients_are_unscaled_in_float32() -> None:
    w = nn.Parameter(torch.ones(4, dtype=torch.float16))
    optimizer, scale = SGD([w], 1024.0, recipe="fp16-master"), scaler("fp16-master")
    scale.scale((w.float() * 2.0**-30).sum()).backward()  # below the smallest number of FP16
    scale.step(optimizer)
    scale.update()
    assert float(optimizer.state[w]["master"][0]) == 1 - 2.0**-20


def test_a_static_scale_stays_through_overflows() -> None:
    w = nn.Parameter(torch.ones(4))
    recipe = FP32.extended(scaling=LossScaling(1024.0, dynamic=False))
    optimizer, scale = SGD([w], 1.0, recipe=recipe), scaler(recipe)
    for gradient in (torch.inf, 0.5, torch.nan):
        turn(scale, optimizer, w, gradient)
    assert scale.get_scale() == 1024.0
    assert torch.equal(w, torch.full((4,), 0.5))


def test_isolated_overflows_sink_a_plain_scale_and_not_one_with_floors() -> None:
    """Mellempudi et al., Mixed Precision Training With 8-bit Floating Point, 2019, section 3.1."""

    def left(scaling: LossScaling) -> float:
        w = nn.Parameter(torch.ones(4))
        recipe = FP32.extended(scaling=scaling)
        optimizer, scale = SGD([w], 0.0, recipe=recipe), scaler(recipe)
        for step in range(600):
            turn(scale, optimizer, w, torch.inf if step % 20 == 7 else 1.0)
        return scale.get_scale()

    assert left(LossScaling(10000.0)) < 1e-3
    assert left(LossScaling(10000.0, floors=((100, 8192.0), (500, 32768.0)))) == 32768.0


def test_the_state_of_a_scaler_comes_back_with_its_count_of_steps() -> None:
    recipe = FP32.extended(scaling=LossScaling(8.0, growth_interval=3, floors=((3, 64.0),)))
    w = nn.Parameter(torch.ones(4))
    optimizer, first, second = SGD([w], 0.1, recipe=recipe), scaler(recipe), scaler(recipe)
    for _ in range(2):
        turn(first, optimizer, w, 1.0)
    second.load_state_dict(first.state_dict())
    for scale in (first, second):
        turn(scale, optimizer, w, 1.0)
    assert first.get_scale() == 64.0
    assert second.state_dict() == first.state_dict()


@pytest.mark.parametrize(
    "given", [torch.amp.GradScaler("cpu", init_scale=4.0).state_dict(), {}, {"steps": 3}]
)
def test_the_state_of_torchs_scaler_is_refused_and_changes_nothing(given: dict[str, Any]) -> None:
    scale = scaler("fp8-stochastic")
    before = scale.state_dict()
    lacking = "steps" if "scale" in given else "scale"
    with pytest.raises(
        ArgumentError, match=f"has no '{lacking}'; expected one that fewbits.optim.LossScaler"
    ):
        scale.load_state_dict(given)
    assert scale.state_dict() == before


@pytest.mark.parametrize("recipe", ["fp16-master", "fp16-no-master", "fp16-only", PACKED])
@pytest.mark.parametrize("ours", [False, True])
def test_gradients_are_unscaled_then_clipped_then_stepped_along(recipe: str | Recipe, ours: bool) -> None:
    dtype = torch.float32 if recipe is PACKED else torch.float16
    w = nn.Parameter(torch.ones(4, dtype=dtype))
    optimizer, scale = SGD([w], 0.25, recipe=recipe), scaler(recipe)
    for _ in range(2):
        scale.scale((w.float() * 0.5).sum()).backward()
        scale.unscale_(optimizer)
        if ours:
            assert optimizer.clip_(0.5) == 1.0
        else:
            assert nn.utils.clip_grad_norm_([w], 0.5) == 1.0
        scale.step(optimizer)
        scale.update()
        optimizer.zero_grad()
        assert getattr(w, "grad_dtype", dtype) == dtype
    torch.testing.assert_close(w.float(), torch.full((4,), 0.875))


def test_unscaling_before_the_step_loses_no_small_fp16_gradient() -> None:
    w = nn.Parameter(torch.ones(4, dtype=torch.float16))
    optimizer, scale = SGD([w], 1024.0, recipe="fp16-master"), scaler("fp16-master")
    scale.scale((w.float() * 2.0**-30).sum()).backward()
    scale.unscale_(optimizer)
    scale.step(optimizer)
    scale.update()
    assert float(optimizer.state[w]["master"][0]) == 1 - 2.0**-20


def test_an_fp16_overflow_seen_by_unscaling_skips_the_step() -> None:
    w = nn.Parameter(torch.ones(4, dtype=torch.float16))
    optimizer, scale = SGD([w], 1.0, recipe="fp16-master"), scaler("fp16-master")
    turn(scale, optimizer, w, 60000.0, unscale=True)
    assert torch.equal(w, torch.ones_like(w))
    assert scale.get_scale() == 32768.0


def test_a_torch_without_wide_gradients_of_fp16_parameters_says_what_to_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fewbits.optim.optimizer.set_grad_dtype", lambda p, dtype: p.dtype == dtype)
    w = nn.Parameter(torch.ones(4, dtype=torch.float16))
    optimizer, scale = SGD([w], 1.0, recipe="fp16-master"), scaler("fp16-master")
    with pytest.raises(ArgumentError, match=r"clip_\(max_norm, loss_scale=scaler.get_scale\(\)\)"):
        turn(scale, optimizer, w, 1.0, unscale=True)


def test_a_floor_holds_from_its_step_on_and_not_before() -> None:
    rising = LossScaler(LossScaling(10.0, floors=((1, 8192.0),)))
    assert rising.get_scale() == 10.0
    assert LossScaler(LossScaling(10.0, floors=((0, 8192.0),))).get_scale() == 8192.0
