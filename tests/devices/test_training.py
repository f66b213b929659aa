"""Training on a device: prepared models, optimizers and loss scalers wait for nothing."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import fewbits as fb
from fewbits import optim, sparsity
from fewbits.optim.packed_gradient import PackedGradient
from fewbits.recipes import recipe
from tests.devices.fake_device import DEVICE, FakeDevice
from tests.kernels.ops.test_portable import same

RECIPES = (
    "mxfp8",
    "mx6",
    "fp16-master",
    "bf16-only",
    "bf16-only-kahan",
    "fp8-lm",
    "fp8-stochastic",
    "add-multiply",
)
OPTIMIZERS = (optim.SGD, optim.AdamW, optim.LARS)
# The steps whose loss overflows: none, the first, when there is no state yet, and one that finds states.
OVERFLOWS = ((), (0,), (2,))


def put(model: nn.Module, device: FakeDevice) -> None:
    """Move a model's parameters and buffers to the device."""
    for module in model.modules():
        for name, p in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(device.put(p)))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, device.put(buffer))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 32))


def trained(
    recipe: str,
    optimizer: Callable[..., torch.optim.Optimizer],
    device: FakeDevice | None,
    *,
    overflows: tuple[int, ...] = (),
    wrap: Callable[[nn.Module, torch.optim.Optimizer], torch.optim.Optimizer] | None = None,
) -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
    """Return the parameters after four steps, and the optimizer; the device notes transfers."""
    model, x = network(), torch.randn(4, 8, 32, generator=torch.Generator().manual_seed(1))
    if device is not None:
        put(model, device)
        x = device.put(x)
    chosen = optimizer(fb.prepare(model, recipe).parameters(), lr=1e-2, recipe=recipe)
    if wrap is not None:
        chosen = wrap(model, chosen)
    scaler = optim.scaler(recipe)
    if device is not None:
        device.transfers.clear()
    for i in range(4):
        torch.manual_seed(i)
        loss = model(x[i]).square().mean() * (float("inf") if i in overflows else 1.0)
        chosen.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(chosen)
        scaler.update()
    return [p.detach() for p in model.parameters()], chosen


def far(there: list[torch.Tensor], here: list[torch.Tensor], device: FakeDevice) -> float:
    """Return the largest difference between parameters on the device and on the CPU."""
    pairs = zip(there, here, strict=True)
    return max(float((device.seen(t).double() - h.double()).abs().max()) for t, h in pairs)


@pytest.mark.parametrize("norm", [nn.LayerNorm(6), nn.GroupNorm(2, 6), nn.RMSNorm(6)], ids=repr)
def test_norms_of_float32_meet_16_bit_floats_in_their_own_dtype(device: FakeDevice, norm: nn.Module) -> None:
    """Torch mixes the two in a LayerNorm or GroupNorm on the CPU alone."""
    model = fb.prepare(nn.Sequential(nn.Linear(6, 6), norm, nn.Linear(6, 6)), "mxfp8")
    seen: list[tuple[torch.dtype, torch.dtype]] = []
    norm.register_forward_hook(lambda _, args, y: seen.append((args[0].dtype, y.dtype)))
    x = torch.randn(5, 6)
    wanted = model(x)
    put(model, device)
    found = model(device.put(x))
    found.sum().backward()
    assert seen[1] == (torch.float32, torch.bfloat16)
    assert seen[0][1] == torch.bfloat16
    assert same(device.seen(found), wanted.detach())


@pytest.mark.parametrize("recipe", RECIPES)
def test_training_transfers_nothing(device: FakeDevice, recipe: str) -> None:
    there, _ = trained(recipe, optim.AdamW, device)
    assert device.transfers == []
    here, _ = trained(recipe, optim.AdamW, None)
    # Products of two narrow operands are summed in another order on the CPU, and rounded to 16 bits.
    assert far(there, here, device) <= 5e-2
    assert not all(
        torch.equal(device.seen(t), p.detach()) for t, p in zip(there, network().parameters(), strict=True)
    )


@pytest.mark.parametrize("overflows", OVERFLOWS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "recipe", ["fp16-master", "fp16-no-master", "fp8-stochastic", "mxfp8:scaling=dynamic"]
)
def test_steps_are_skipped_without_asking_the_device(
    device: FakeDevice, recipe: str, optimizer: Any, overflows: tuple[int, ...]
) -> None:
    there, mine = trained(recipe, optimizer, device, overflows=overflows)
    assert device.transfers == []
    here, theirs = trained(recipe, optimizer, None, overflows=overflows)
    assert all(device.seen(t).isfinite().all() for t in there)
    assert far(there, here, device) <= 5e-2
    if optimizer is optim.AdamW:
        counts = [int(device.seen(s["step"])) for s in mine.state.values()]
        assert counts == [s["step"] for s in theirs.state.values()] == [4 - len(overflows)] * len(there)


@pytest.mark.parametrize("betas", [(0.0, 0.95), (0.9, 0.0)])
def test_moments_that_forget_at_once_need_no_correction_where_steps_are_counted_on_the_device(
    device: FakeDevice, betas: tuple[float, float]
) -> None:
    optimizer = partial(optim.AdamW, betas=betas)
    there, _ = trained("fp16-master", optimizer, device, overflows=(1,))
    here, _ = trained("fp16-master", optimizer, None, overflows=(1,))
    assert far(there, here, device) <= 5e-2


def test_an_update_that_is_not_taken_back_would_be_seen(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fewbits.optim.skipped_steps.Before.restore_where", lambda *_: None)
    there, _ = trained("fp16-master", optim.AdamW, device, overflows=(2,))
    assert not all(device.seen(t).isfinite().all() for t in there)


def test_a_step_of_fp32_equals_that_of_the_cpu(device: FakeDevice) -> None:
    for optimizer in (optim.SGD, optim.AdamW):
        there, _ = trained("fp32", optimizer, device)
        here, _ = trained("fp32", optimizer, None)
        assert far(there, here, device) == 0


def test_a_state_goes_from_the_device_to_the_cpu_and_on(device: FakeDevice) -> None:
    _, there = trained("fp16-master", optim.AdamW, device, overflows=(1,))
    state = there.state_dict()
    assert all(isinstance(s["step"], torch.Tensor) for s in state["state"].values())
    model = fb.prepare(network(), "fp16-master")
    again = optim.AdamW(model.parameters(), recipe="fp16-master")
    again.load_state_dict(state)
    assert [s["step"] for s in again.state.values()] == [3] * 6
    assert all(type(s["step"]) is int and s["first_moment"].is_cpu for s in again.state.values())


def test_a_gradient_is_packed_and_scaled_where_it_lies(device: FakeDevice) -> None:
    target = recipe("fp8-lm").held_gradient
    assert target is not None
    g = PackedGradient(device.put(torch.randn(8, 32)), target)
    broken = PackedGradient(device.put(torch.full((8, 32), torch.inf)), target)
    g.mul_(0.5)
    g.zero_()
    assert device.transfers == []
    assert not device.seen(g.values()).any()
    assert device.seen(broken.values()).isnan().all()


def test_a_static_scale_stays_still_and_a_floor_holds(device: FakeDevice) -> None:
    static, floored = optim.scaler("fp16-master-static"), optim.scaler("fp16-master:scaling=dynamic")
    for scaler in (static, floored):
        w = nn.Parameter(device.put(torch.ones(4)))
        optimizer = optim.SGD([w], lr=0.1)
        device.transfers.clear()
        scaler.scale((w * torch.inf).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert device.transfers == []
    assert static.get_scale() == 1024
    assert floored.get_scale() == 32768


@pytest.mark.parametrize("schedule", [None, sparsity.Recomputed(decay=1e-4)])
@pytest.mark.parametrize("recipe", ["fp16-master:first_moment=mxfp8_e4m3"])
def test_masked_optimizers_transfer_nothing(device: FakeDevice, recipe: str, schedule: Any) -> None:
    def wrap(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        options = {} if schedule is None else {"schedule": schedule}
        sparsity.sparsify(model, "2:4", **options)
        return sparsity.MaskedOptimizer(optimizer, model)

    there, mine = trained(recipe, optim.AdamW, device, wrap=wrap)
    assert device.transfers == []
    here, theirs = trained(recipe, optim.AdamW, None, wrap=wrap)
    assert far(there, here, device) <= 5e-2
    assert isinstance(mine, sparsity.MaskedOptimizer)
    assert isinstance(theirs, sparsity.MaskedOptimizer)
    assert mine.flip_rate == theirs.flip_rate


@pytest.mark.parametrize("recipe", ["amp-bf16", "amp-fp16"])
def test_autocast_is_refused_where_torch_has_none(device: FakeDevice, recipe: str) -> None:
    sentence = f"torch has none for {DEVICE.type}, where the parameters lie; take a recipe without it"
    with pytest.raises(fb.ArgumentError, match=sentence):
        trained(recipe, optim.AdamW, device)
    assert device.transfers == []


def test_clipping_waits_once_for_the_norm_that_it_returns(device: FakeDevice) -> None:
    w = nn.Parameter(device.put(torch.ones(100)))
    optimizer = optim.SGD([w], lr=0.1)
    (w * 2).sum().backward()
    assert optimizer.clip_(1.0) == 20.0
    assert [t.what.split()[:2] for t in device.transfers] == [["a", "number"]]
    assert w.grad is not None
    assert torch.allclose(device.seen(w.grad), torch.full((100,), 0.1))


def test_a_model_on_two_devices_is_unscaled_and_clipped(device: FakeDevice) -> None:
    for optimizer in OPTIMIZERS:
        parameters = [nn.Parameter(torch.ones(2, 4).half()) for _ in range(2)]
        parameters[0] = nn.Parameter(device.put(parameters[0]))
        made, scaler = optimizer(parameters, lr=0.5, recipe="fp16-master"), optim.scaler("fp16-master")
        for p in parameters:
            scaler.scale(p.float().sum() / 2).backward()
        scaler.step(made)
        assert torch.equal(device.seen(parameters[0].detach()), parameters[1].detach())
        assert not torch.equal(parameters[1].detach(), torch.ones(2, 4).half())
        assert made.clip_(1.0, loss_scale=scaler.get_scale()) == pytest.approx(2.0)


def test_steps_are_counted_in_float32_whatever_the_default_dtype_is(device: FakeDevice) -> None:
    w = nn.Parameter(device.put(torch.ones(4)))
    optimizer, scaler = optim.AdamW([w], recipe="fp16-master"), optim.scaler("fp16-master")
    torch.set_default_dtype(torch.bfloat16)
    try:
        scaler.scale(w.sum()).backward()
        scaler.step(optimizer)
    finally:
        torch.set_default_dtype(torch.float32)
    assert optimizer.state[w]["step"].dtype == torch.float32  # bfloat16 counts no further than 256
