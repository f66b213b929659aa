"""A packed gradient in ``p.grad`` is a gradient to everything that torch does with one."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import fewbits as fb
from fewbits.optim import SGD, LossScaler
from fewbits.optim.packed_gradient import PackedGradient
from fewbits.recipes import RECIPES, LossScaling

FORMATS = ["block(element=fp8_e4m3,scale=e8m0,size=tensor)", "fp8_e5m2", "mxfp6_e3m2"]
DRAW = torch.Generator().manual_seed(0)
X = torch.randn(16, 20, generator=DRAW)
Y = torch.randn(20, generator=DRAW)  # the gradient of an ordinary parameter, as a LayerNorm's


def packed(x: Tensor = X, fmt: str = "fp8_e5m2") -> PackedGradient:
    how = RECIPES["fp32"].extended(held_gradient=fmt).held_gradient
    assert how is not None
    return PackedGradient(x, how)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("ours", [False, True], ids=["GradScaler", "LossScaler"])
@pytest.mark.parametrize(
    ("unscaled_first", "clip"),  # torch's clipping comes after unscale_
    [(False, "not"), (False, "ours")]
    + [(True, how) for how in ("not", "norm", "norm, foreach", "largest", "value", "ours")],
)
def test_scaling_and_clipping_beside_ordinary_gradients_update_as_arithmetic_says(
    fmt: str, ours: bool, unscaled_first: bool, clip: str
) -> None:
    """The yardstick is float64 arithmetic on the gradient as the format has it."""
    scaling = LossScaling(1024.0)
    recipe = RECIPES["fp32"].extended(held_gradient=fmt, scaling=scaling)
    w, norm = nn.Parameter(torch.zeros(16, 20)), nn.Parameter(torch.zeros(20))
    optimizer = SGD([{"params": [w]}, {"params": [norm]}], 1.0, recipe=recipe)
    torch_keeps = SGD([norm], 1.0)  # the newest optimizer of `norm`: its gradient stays as autograd has it
    scale = LossScaler(scaling) if ours else torch.amp.GradScaler("cpu", init_scale=1024.0)
    scale.scale((w * X).sum() + (norm * Y).sum()).backward()
    assert isinstance(w.grad, PackedGradient)
    assert type(norm.grad) is Tensor
    del torch_keeps
    if unscaled_first:
        scale.unscale_(optimizer)
    if clip == "norm":
        nn.utils.clip_grad_norm_([w, norm], 0.5)
    elif clip == "norm, foreach":
        nn.utils.clip_grad_norm_([w, norm], 0.5, foreach=True)
    elif clip == "largest":
        nn.utils.clip_grad_norm_([w, norm], 0.5, norm_type=torch.inf)
    elif clip == "value":
        nn.utils.clip_grad_value_([w, norm], 0.3)
    elif clip == "ours":
        optimizer.clip_(0.5, loss_scale=1.0 if unscaled_first else 1024.0)
    scale.step(optimizer)
    scale.update()
    g, y = fb.fake_quantize(1024 * X, fmt).double() / 1024, Y.double()
    whole = torch.cat([g.flatten(), y])
    if clip == "value":
        g, y = g.clamp(-0.3, 0.3), y.clamp(-0.3, 0.3)
    elif clip != "not":
        factor = 0.5 / whole.norm(p=torch.inf if clip == "largest" else 2)
        g, y = g * factor, y * factor
    torch.testing.assert_close(w.double(), -g, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(norm.double(), -y, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("unscaled_first", [False, True])
@pytest.mark.parametrize("place", ["packed", "ordinary"])
def test_an_overflow_anywhere_skips_the_step_of_torchs_scaler(
    bad: float, unscaled_first: bool, place: str
) -> None:
    w, norm = nn.Parameter(torch.zeros(16, 20)), nn.Parameter(torch.zeros(20))
    optimizer = SGD([w, norm], 1.0, recipe="fp32:held_gradient=mxfp6_e3m2")  # which has no infinity
    ordinary = SGD([norm], 1.0)
    scale = torch.amp.GradScaler("cpu", init_scale=8.0)
    scale.scale((w * X).sum() + (norm * Y).sum()).backward()
    x, y = X.clone(), Y.clone()
    (x if place == "packed" else y)[3] = bad
    w.grad, norm.grad = None, None
    scale.scale((w * x).sum() + (norm * y).sum()).backward()
    if unscaled_first:
        scale.unscale_(optimizer)
        nn.utils.clip_grad_norm_([w, norm], 1.0)
    scale.step(optimizer)
    scale.update()
    assert scale.get_scale() == 4.0
    assert not w.any()
    assert not norm.any()
    assert ordinary is not None


def write_through_a_view(g: Tensor) -> None:
    g[2:4, ::3].fill_(0.123)


def write_through_an_alias(g: Tensor) -> None:
    g.detach().mul_(3).view(-1)[7] = 1e-3


def scale_beside_a_view(g: Tensor) -> None:
    row = g[3]
    row.add_(0.123)
    g.mul_(0.7)
    row.sub_(0.2)


CHANGES: dict[str, Callable[[Tensor], object]] = {
    "times a number": lambda g: g.mul_(0.3),
    "times a tensor of one": lambda g: g.mul_(torch.full((1, 1), 0.3)),
    "times double": lambda g: g.mul_(torch.tensor(0.3, dtype=torch.float64)),
    "over a number": lambda g: g.div_(3),
    "over a tensor": lambda g: g.div_(torch.tensor(3.0)),
    "times each": lambda g: g.mul_(Y),
    "foreach": lambda g: torch._foreach_mul_([g, torch.ones(2)], 0.3),
    "foreach of another kind": lambda g: torch._foreach_add_([g, torch.ones(2)], 0.3),
    "clamped": lambda g: g.clamp_(-0.1, 0.1),
    "a row": lambda g: g[3].zero_(),
    "by a mask": lambda g: g.__setitem__(g > 0.5, 0.0),
    "a view": write_through_a_view,
    "an alias": write_through_an_alias,
    "a view, scaled and the view again": scale_beside_a_view,
    "plus": lambda g: g.add_(X.flip(0), alpha=0.01),
    "plus a number": lambda g: g.add_(1e-3),
    "zero": lambda g: g.zero_(),
    "copied": lambda g: g.copy_(X.flip(0)),
    "out": lambda g: torch.add(X, 1.0, out=g),
    "not finite": lambda g: g.nan_to_num_().mul_(torch.inf),
}


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("change", CHANGES)
def test_whatever_is_written_to_it_is_there_as_in_an_ordinary_gradient(fmt: str, change: str) -> None:
    w = nn.Parameter(torch.zeros(16, 20))
    w.grad = packed(X, fmt)
    plain = fb.fake_quantize(X, fmt)
    torch.testing.assert_close(w.grad.clone(), plain, rtol=0, atol=0)
    assert w.grad.numpy().tolist() == w.grad.tolist() == plain.tolist()
    for apply in (CHANGES["times a number"], CHANGES[change], CHANGES["over a number"]):
        apply(w.grad)
        apply(plain)
        torch.testing.assert_close(w.grad.clone(), plain, rtol=1e-6, atol=1e-9, equal_nan=True)
    assert isinstance(w.grad, PackedGradient)


def test_scaled_and_masked_it_stays_packed_and_clamped_it_is_exact() -> None:
    g = packed()
    small = g.nbytes
    assert small == X.numel()
    g.mul_(0.3).div_(7)
    nn.utils.clip_grad_norm_([p := nn.Parameter(torch.zeros(16, 20))], 1.0)
    p.grad = g
    nn.utils.clip_grad_norm_([p], 1e-3)
    assert g.nbytes == small
    masked = packed()
    masked.mul_((X > 0).float())  # every value that is left is one of the format
    assert masked.nbytes == small
    masked.clamp_(max=0.3)  # which is none
    assert masked.nbytes == 4 * small
    assert float(masked.max()) == pytest.approx(0.3)
    masked.zero_()
    assert masked.nbytes == small


def test_of_wide_values_of_sixteen_bits_a_factor_rounds_nothing() -> None:
    g = PackedGradient(X, packed().target, torch.float16)
    values = g.values()
    assert g.view(-1).dtype == torch.float16  # which makes them wide
    g.mul_(2.0**-24)
    assert torch.equal(g.values(), 2.0**-24 * values)


def test_it_reads_as_the_values_that_the_format_has() -> None:
    g, wanted = packed(), fb.fake_quantize(X, "fp8_e5m2")
    assert g.norm() == wanted.norm()
    assert torch.equal(g + 1, wanted + 1)
    assert torch.equal(torch.stack([g, g]), torch.stack([wanted, wanted]))
    assert torch.equal(g.view(-1)[5:9], wanted.view(-1)[5:9])
    assert torch.equal(g.half(), wanted.half())
    assert (g.shape, g.dtype) == (X.shape, torch.float32)
    assert repr(packed()) == "PackedGradient(fp8_e5m2, shape=(16, 20), 320 bytes)"


@pytest.mark.parametrize("to_none", [False, True])
def test_zero_grad_of_the_model_drops_it_too(to_none: bool) -> None:
    layer = nn.Linear(20, 16)
    optimizer = SGD(layer.parameters(), 1.0, recipe="fp32:held_gradient=fp8_e5m2")
    for _ in range(2):
        layer.zero_grad(set_to_none=to_none)
        (layer.weight * X).sum().backward()
    ((_, g), *_) = optimizer.gradients()
    assert torch.equal(g, fb.fake_quantize(X, "fp8_e5m2"))


def test_torchs_own_optimizers_step_with_it() -> None:
    w = nn.Parameter(torch.zeros(16, 20))
    w.grad = packed()
    torch.optim.SGD([w], 1.0).step()
    assert torch.equal(w, -fb.fake_quantize(X, "fp8_e5m2"))


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_copy_is_as_packed_and_changes_by_itself(fmt: str) -> None:
    g = packed(X, fmt)
    g.mul_(0.3)
    first, second = copy.deepcopy([g, g])
    assert first is second
    assert isinstance(first, PackedGradient)
    assert (first.nbytes, first.dtype, first.target) == (g.nbytes, g.dtype, g.target)
    assert torch.equal(first, g)
    before = g.clone()
    first.mul_(2)
    first[0] = 7
    assert torch.equal(g, before)
    assert not torch.equal(first, g)
