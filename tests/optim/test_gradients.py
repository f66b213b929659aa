"""Gradients that are packed as soon as autograd has them."""

import copy
import gc
import math
import pickle

import pytest
import torch
from torch import nn

import fewbits as fb
from fewbits.errors import ArgumentError
from fewbits.nn import prepare
from fewbits.optim import SGD, AdamW
from fewbits.optim.packed_gradient import PackedGradient
from fewbits.recipes import RECIPES, Recipe

E4M3 = "block(element=fp8_e4m3,scale=e8m0,size=tensor)/rceil"
PACKED = RECIPES["fp32"].extended(held_gradient=E4M3)
X = torch.randn(16, 20, generator=torch.Generator().manual_seed(0))


def optimizer(w: nn.Parameter) -> SGD:
    return SGD([w], 1.0, recipe=PACKED)


def test_a_gradient_is_packed_once_and_no_wide_one_stays() -> None:
    w = nn.Parameter(torch.ones(16, 20))
    sgd = optimizer(w)
    (w * X).sum().backward()
    assert isinstance(w.grad, PackedGradient)
    wanted = fb.fake_quantize(X, E4M3.removesuffix("/rceil"), scale_rule="rceil")
    ((p, g),) = sgd.gradients()
    assert p is w
    assert torch.equal(g, wanted)
    assert sgd.nbytes()["gradients"] == 16 * 20 + 1
    sgd.step()
    assert torch.equal(w, 1 - wanted)
    sgd.zero_grad()
    assert not list(sgd.gradients())
    assert sgd.nbytes()["gradients"] == 0


def test_gradients_add_up_and_are_rounded_anew() -> None:
    w = nn.Parameter(torch.ones(16, 20))
    sgd = optimizer(w)
    for _ in range(3):
        (w * X).sum().backward()
    ((_, g),) = sgd.gradients()
    torch.testing.assert_close(g, 3 * X, rtol=0.15, atol=1e-2)


@pytest.mark.parametrize("recipe", ["fp32", PACKED, "fp16-master", "fp16-only"])
@pytest.mark.parametrize("loss_scale", [1.0, 8.0])
def test_clipping_shrinks_the_norm_to_its_limit(recipe: str, loss_scale: float) -> None:
    dtype = torch.float16 if "fp16" in str(recipe) else torch.float32
    w = nn.Parameter(torch.ones(16, 20, dtype=dtype))
    sgd = SGD([w], 1.0, recipe=recipe)
    (loss_scale * w.float() * X).sum().backward()
    before = sgd.clip_(2.0, loss_scale=loss_scale)
    assert before == pytest.approx(float(X.norm()), rel=0.05)
    ((_, g),) = sgd.gradients()
    assert float(g.norm()) == pytest.approx(2.0 * loss_scale, rel=1e-3)
    assert sgd.clip_(100.0) == pytest.approx(2.0 * loss_scale, rel=1e-3)  # short enough already
    assert torch.equal(next(sgd.gradients())[1], g)


@pytest.mark.parametrize("loss_scale", [1.0, 128.0])
@pytest.mark.parametrize("last", [[1.0, 1e-3], [0.01, 1e-4]])
def test_clipping_loses_no_small_fp16_gradient(last: list[float], loss_scale: float) -> None:
    w = nn.Parameter(torch.zeros(3, dtype=torch.float16))
    w.grad = torch.tensor([20000.0, *last], dtype=torch.float16)
    exact = w.grad.double()
    sgd = SGD([w], 1.0, momentum=0.0, recipe="fp16-master:scaling=none")
    sgd.clip_(1e-2, loss_scale=loss_scale)
    sgd.step()
    torch.testing.assert_close(
        sgd.state[w]["master"].double(), -exact * 1e-2 * loss_scale / exact.norm(), rtol=1e-6, atol=0
    )
    assert getattr(w, "grad_dtype", torch.float16) == torch.float16


def test_a_norm_that_is_no_number_makes_all_gradients_nan() -> None:
    v, w = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    v.grad, w.grad = torch.tensor([1.0, math.nan]), torch.ones(3)
    assert math.isnan(SGD([v, w], 1.0).clip_(1.0))
    assert v.grad.isnan().all()
    assert w.grad.isnan().all()


def test_clipping_nothing_is_no_error() -> None:
    assert optimizer(nn.Parameter(torch.ones(2))).clip_(1.0) == 0.0


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("fmt", [E4M3, "fp8_e5m2", "posit8_1", "fixed16_f14", "mxint8", "bf16"])
def test_every_format_says_that_a_gradient_is_not_finite(fmt: str, bad: float) -> None:
    w = nn.Parameter(torch.ones(4, 8))
    sgd = SGD([w], 1.0, recipe=PACKED.extended(held_gradient=fmt))
    x = torch.ones(4, 8)
    x[1, 2] = bad
    (w * x).sum().backward()
    assert not next(sgd.gradients())[1].isfinite().all()
    w.square().sum().backward()  # what is added later does not hide it
    assert not next(sgd.gradients())[1].isfinite().all()
    assert math.isnan(sgd.clip_(1.0))


def test_a_gradient_beyond_e5m2_becomes_infinite() -> None:
    w = nn.Parameter(torch.ones(8))
    sgd = SGD([w], 1.0, recipe=PACKED.extended(held_gradient="fp8_e5m2"))
    (1e6 * w).sum().backward()
    assert next(sgd.gradients())[1].isinf().all()


def test_a_gradient_that_is_in_the_format_stays_where_torch_keeps_it() -> None:
    w = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    sgd = SGD([w], 1.0, recipe="bf16-only")
    w.sum().backward()
    assert type(w.grad) is torch.Tensor
    assert sgd.nbytes()["gradients"] == 16


def test_an_excluded_float32_parameter_is_left_as_it_is() -> None:
    w = nn.Parameter(torch.ones(8))
    adamw = AdamW([w], recipe="fp16-only")
    w.sum().backward()
    assert type(w.grad) is torch.Tensor
    adamw.step()
    assert w.dtype == torch.float32
    assert "compensation" not in adamw.state[w]


def test_a_new_optimizer_takes_over_when_the_old_one_is_gone() -> None:
    w = nn.Parameter(torch.ones(16, 20))
    old = optimizer(w)
    del old
    gc.collect()
    new = optimizer(w)
    w.sum().backward()
    assert len(list(new.gradients())) == 1


def test_parameters_added_later_are_held_too() -> None:
    v, w = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))
    sgd = optimizer(v)
    sgd.add_param_group({"params": [w]})
    w.sum().backward()
    assert isinstance(w.grad, PackedGradient)
    assert next(sgd.gradients())[0] is w


def test_the_newest_of_two_optimizers_says_how_gradients_are_held() -> None:
    w = nn.Parameter(torch.ones(16, 20))
    kept = [optimizer(w), SGD([w], 1.0, recipe=PACKED.extended(held_gradient="fp8_e5m2"))]
    (w * X).sum().backward()
    assert torch.equal(w.grad, fb.fake_quantize(X, "fp8_e5m2"))
    kept.append(SGD([w], 1.0))
    w.grad = None
    (w * X).sum().backward()
    assert torch.equal(w.grad, X)


def test_a_newer_optimizer_that_packs_nothing_has_gradients_of_the_parameters_dtype() -> None:
    w = nn.Parameter(torch.ones(16, 20, dtype=torch.float16))
    kept = [SGD([w], 1.0, recipe=RECIPES["fp16-master"].extended(held_gradient=E4M3))]
    kept.append(SGD([w], 1.0, recipe="fp16-master"))
    w.sum().backward()
    assert type(w.grad) is torch.Tensor
    assert w.grad.dtype == torch.float16


def test_a_layer_that_thaws_after_the_optimizer_was_made_is_held_too() -> None:
    w = nn.Parameter(torch.ones(16, 20), requires_grad=False)
    sgd = optimizer(w)
    assert not w.requires_grad
    w.requires_grad_(True)
    (w * X).sum().backward()
    assert isinstance(w.grad, PackedGradient)
    assert len(list(sgd.gradients())) == 1


LAYERS: dict[str, tuple[nn.Module, torch.Tensor]] = {
    "linear": (nn.Linear(64, 64), torch.randn(32, 64)),
    "convolution": (nn.Conv1d(8, 8, 3), torch.randn(4, 8, 20)),
    "bilinear": (nn.Bilinear(8, 8, 8), torch.randn(32, 8)),
    "embedding": (nn.Embedding(8, 8), torch.arange(8)),
    "attention": (nn.MultiheadAttention(16, 2), torch.randn(10, 4, 16)),
    "lstm": (nn.LSTM(8, 8), torch.randn(6, 4, 8)),
    "prelu": (nn.Sequential(nn.PReLU(8)), torch.randn(32, 8)),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="this torch has FP16 gradients only")
def test_small_gradients_of_fp16_parameters_reach_their_scaled_format(kind: str) -> None:
    def lost(recipe: str) -> float:
        layer, x = copy.deepcopy(LAYERS[kind])
        torch.manual_seed(0)
        model = prepare(layer, recipe)
        adamw = AdamW(model.parameters(), recipe=recipe)
        inputs = [x] * {"bilinear": 2, "attention": 3}.get(kind, 1)
        y = model(*inputs)
        y = y[0] if isinstance(y, tuple) else y
        (1e-7 * (y * torch.randn_like(y)).mean()).backward()
        found = list(adamw.gradients())
        assert len(found) == len(list(model.parameters()))
        return sum(int((g == 0).sum()) for _, g in found) / sum(g.numel() for _, g in found)

    assert lost("fp8-lm") <= lost("fp8-lm-o2") + 0.02


@pytest.mark.parametrize("recipe", ["fp8-lm", "fp16-no-scaling", PACKED])
def test_a_copy_of_model_and_optimizer_trains_as_they_do(recipe: str | Recipe) -> None:
    model = prepare(nn.Linear(20, 20), recipe)
    sgd = SGD(model.parameters(), 0.1, momentum=0.9, recipe=recipe)
    model(X).square().sum().backward()
    sgd.step()
    sgd.zero_grad()  # copies of parameters have no gradients
    other, copied = copy.deepcopy((model, sgd))
    assert copied.recipe is not None
    assert copied.nbytes() == sgd.nbytes()
    assert copied.state.keys() == set(other.parameters())
    for m, o in ((model, sgd), (other, copied)):
        m(X).square().sum().backward()
        o.step()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert p is not q
        assert torch.equal(p, q)
        assert (p.grad is None) == (q.grad is None)


def test_pickles_are_whole_or_refused_with_what_to_do_instead() -> None:
    w = nn.Parameter(torch.ones(16, 20))
    sgd = SGD([w], 1.0, momentum=0.9, recipe="fp32:held_gradient=fp8_e5m2")
    again = pickle.loads(pickle.dumps(sgd))  # noqa: S301  # our own
    assert again.recipe == sgd.recipe
    (p,) = again.param_groups[0]["params"]
    (p * X).sum().backward()
    assert isinstance(p.grad, PackedGradient)
    assert len(list(again.gradients())) == 1
    packed = AdamW([w], recipe="fp8-lm-o2")
    w.sum().backward()
    packed.step()
    packed.zero_grad()
    with pytest.raises(ArgumentError, match=r"fp8-lm-o2.*save_state"):
        pickle.dumps(packed)
