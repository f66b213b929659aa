"""SGD, AdamW and LARS: torch's own results in float32, packed states, exact resumption and clear refusals."""

import copy
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fewbits as fb
from fewbits.errors import ArgumentError
from fewbits.nn import prepare
from fewbits.optim import LARS, SGD, AdamW, Optimizer
from fewbits.optim import optimizer as optimizers
from fewbits.optim.packing import pack
from fewbits.recipes import RECIPES, Recipe
from fewbits.recipes import recipe as read

FP32 = RECIPES["fp32"]
E4M3 = "block(element=fp8_e4m3,scale=e8m0,size=tensor)/rceil"
FP16 = "block(element=fp16,scale=e8m0,size=tensor)/rceil"
KINDS: dict[str, Callable[..., Optimizer]] = {
    "sgd": lambda p, recipe: SGD(p, 0.1, momentum=0.9, weight_decay=0.01, recipe=recipe),
    "adamw": lambda p, recipe: AdamW(p, recipe=recipe),
    "lars": lambda p, recipe: LARS(p, 1.0, weight_decay=0.01, recipe=recipe),
}


def parameters(seed: int = 0, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(seed)
    shapes = ((16, 40), (40,), (3, 2, 3, 3), ())
    return [nn.Parameter(torch.randn(shape, generator=random).to(dtype)) for shape in shapes]


def step(optimizer: torch.optim.Optimizer, given: list[nn.Parameter], seed: int) -> None:
    """Go one step along gradients that depend on the seed alone, by way of autograd."""
    random = torch.Generator().manual_seed(seed)
    optimizer.zero_grad()
    sum((p * torch.randn(p.shape, generator=random).to(p.dtype)).sum() for p in given).backward()
    optimizer.step()


SAME_AS_TORCH = {
    "sgd": (lambda p: SGD(p, 0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (
        lambda p: SGD(p, 0.1, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1),
    ),
    "nesterov": (
        lambda p: SGD(p, 0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    ),
    "adamw": (AdamW, torch.optim.AdamW),
    "adamw, other options": (
        lambda p: AdamW(p, 0.01, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.3),
        lambda p: torch.optim.AdamW(p, 0.01, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.3),
    ),
}


@pytest.mark.parametrize(("ours", "theirs"), SAME_AS_TORCH.values(), ids=SAME_AS_TORCH)
def test_in_fp32_it_is_torchs_optimizer(
    ours: Callable[..., torch.optim.Optimizer], theirs: Callable[..., torch.optim.Optimizer]
) -> None:
    mine, wanted = parameters(), parameters()
    a, b = ours(mine), theirs(wanted)
    for seed in range(20):
        step(a, mine, seed)
        step(b, wanted, seed)
    for p, q, start in zip(mine, wanted, parameters(), strict=True):
        assert not torch.equal(p, start)
        torch.testing.assert_close(p, q, rtol=2e-6, atol=1e-6)


def test_lars_is_its_formula() -> None:
    given = parameters()
    optimizer = LARS(given, 2.0, momentum=0.9, weight_decay=0.01, trust_coefficient=0.02)
    wanted = [p.detach().double() for p in given]
    moved = [torch.zeros_like(w) for w in wanted]
    for seed in range(5):
        step(optimizer, given, seed)
        for i, (w, p) in enumerate(zip(wanted, given, strict=True)):
            assert p.grad is not None
            g, rate = p.grad.double(), 2.0
            if w.ndim > 1:
                rate *= 0.02 * float(w.norm() / (g.norm() + 0.01 * w.norm()))
                g = g + 0.01 * w
            moved[i] = 0.9 * moved[i] + rate * g
            wanted[i] = w - moved[i]
    for p, w in zip(given, wanted, strict=True):
        torch.testing.assert_close(p.double(), w, rtol=1e-5, atol=1e-5)


def test_what_is_kept_saturates_or_overflows_as_asked() -> None:
    how = read("fp32:first_moment=fp8_e5m2").first_moment
    x = torch.tensor([1e9, -1e9, 1.0])
    assert pack(x, how).dequantize().tolist() == [57344.0, -57344.0, 1.0]
    assert pack(x, how, overflow=None).dequantize().tolist() == [torch.inf, -torch.inf, 1.0]


def test_gradients_that_were_widened_for_a_scaler_are_narrow_again_after_the_step() -> None:
    w = torch.nn.Parameter(torch.zeros(4, dtype=torch.float16))
    optimizer = SGD([w], 1.0, recipe="fp16-only")
    for _ in range(2):
        w.grad = torch.ones(4, dtype=torch.float16)
        optimizer.widen_gradients()
        assert [p is w for p in optimizer._widened] == [True]
        optimizer.step()
        assert optimizer._widened == []


def test_lars_takes_a_plain_step_where_a_norm_is_zero() -> None:
    w, still = (torch.nn.Parameter(v) for v in (torch.zeros(2, 3), torch.ones(2, 3)))
    w.grad, still.grad = torch.full((2, 3), 0.5), torch.zeros(2, 3)
    LARS([w, still], 2.0, momentum=0.0, weight_decay=0.25, trust_coefficient=0.02).step()
    assert torch.equal(w, torch.full((2, 3), -1.0))  # no trust in a ratio of nothing
    assert torch.equal(still, torch.full((2, 3), 0.5))  # the decay alone


def test_the_norms_of_lars_do_not_overflow_where_fp16_would() -> None:
    w = nn.Parameter(torch.ones(300, 300, dtype=torch.float16))
    assert w.detach().square().sum(dtype=torch.float16).isinf()
    w.grad = torch.ones_like(w)
    LARS([w], 1.0, trust_coefficient=0.5, recipe="fp16-only").step()
    assert torch.equal(w, torch.full_like(w, 0.5))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "recipe",
    [
        "fp32",
        "bf16-only",
        "bf16-only-kahan",
        "fp16-only:scaling=none",
        "fp16-no-scaling",
        "fixed16",
        "posit-stages",
        "fp8-lm",
        "fp8-lm-o2",
        "fp8-lm:has_master=true,master=mxfp8_e4m3,first_moment=posit8_1/stochastic",
    ],
)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(kind: str, recipe: str) -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return prepare(nn.Sequential(nn.Linear(40, 16), nn.Linear(16, 3)), recipe)

    def train(m: nn.Module, optimizer: Optimizer, seed: int) -> None:
        torch.manual_seed(seed)
        for _ in range(3):
            step(optimizer, list(m.parameters()), int(torch.randint(100, ())))

    whole = model()
    first = KINDS[kind](whole.parameters(), recipe)
    train(whole, first, 1)
    saved, resumed = copy.deepcopy(first.state_dict()), model()
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    second = KINDS[kind](resumed.parameters(), recipe)
    second.load_state_dict(saved)
    train(whole, first, 2)
    train(resumed, second, 2)
    for p, q in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert p.dtype == q.dtype
        assert torch.equal(p, q)
        for name, x in first.state[p].items():
            y = second.state[q][name]
            assert type(x) is type(y)
            if isinstance(x, fb.NarrowTensor):
                assert all(
                    torch.equal(a, b) for a, b in zip(x.pieces, y.pieces, strict=True) if a is not None
                )
            elif isinstance(x, torch.Tensor):
                assert x.dtype == y.dtype
                assert torch.equal(x, y)
    assert first.nbytes() == second.nbytes()


def test_steps_do_not_change_a_state_that_was_loaded() -> None:
    w = nn.Parameter(torch.ones(4))
    first, second = AdamW([w]), AdamW([w])
    w.grad = torch.arange(4.0)
    first.step()
    saved = copy.deepcopy(first.state_dict())
    kept = copy.deepcopy(saved["state"][0])
    second.load_state_dict(saved)
    second.step()
    for name in AdamW.moments:
        assert torch.equal(saved["state"][0][name], kept[name])


def test_states_are_really_packed() -> None:
    w = nn.Parameter(torch.randn(64, 64))
    optimizer = AdamW([w], recipe=FP32.extended(first_moment=E4M3, second_moment="bf16", has_master=True))
    w.grad = torch.ones_like(w)
    optimizer.step()
    state = optimizer.state[w]
    assert isinstance(state["first_moment"], fb.NarrowTensor)
    assert state["second_moment"].dtype == torch.bfloat16
    found = optimizer.nbytes()
    assert found["first_moment"] == 64 * 64 + 1  # a byte each, and one for the scale
    assert found["second_moment"] == 2 * 64 * 64
    assert found["master"] == 0  # a float32 parameter is its own
    assert found["per_value"] == pytest.approx(4 + 4 + 1 + 2, rel=1e-3)


def test_fp8_lm_holds_6_bytes_for_each_value() -> None:
    torch.manual_seed(0)
    model = prepare(nn.Sequential(nn.Linear(64, 1000), nn.ReLU(), nn.Linear(1000, 64)), "fp8-lm")
    assert sum(p.numel() for p in model.parameters()) >= 1e5
    optimizer = AdamW(model.parameters(), recipe="fp8-lm")
    for _ in range(2):
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        found = optimizer.nbytes()
        optimizer.zero_grad()
    assert 6.0 < found["per_value"] <= 6.2


@pytest.mark.parametrize("has_master", [False, True])
@pytest.mark.parametrize("fmt", ["fp16", "bf16", "fixed16_f10", "posit8_1", "mxfp8_e4m3"])
def test_parameters_stay_on_the_grid_of_their_format(fmt: str, has_master: bool) -> None:
    recipe = FP32.extended(parameter=fmt, has_master=has_master)
    model = prepare(nn.Sequential(nn.Linear(64, 8)), recipe)
    optimizer = SGD(model.parameters(), 0.01, recipe=recipe)
    given = list(model.parameters())
    before = [p.detach().clone() for p in given]
    for seed in range(3):
        step(optimizer, given, seed)
    for p, old in zip(given, before, strict=True):
        assert not torch.equal(p, old)
        assert torch.equal(p, fb.fake_quantize(p.detach(), fmt))
        assert ("master" in optimizer.state[p]) is has_master
        if has_master:
            assert optimizer.state[p]["master"].dtype == torch.float32


def test_a_parameter_without_gradient_is_left_alone_and_a_closure_runs_with_gradients() -> None:
    used, idle = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = AdamW([used, idle])

    def closure() -> float:
        optimizer.zero_grad()
        loss = used.square().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 3.0
    assert idle not in optimizer.state
    assert torch.equal(idle, torch.ones(3))
    assert not torch.equal(used, torch.ones(3))


def test_a_scheduler_and_groups_work_as_in_torch() -> None:
    a, b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = SGD([{"params": [a]}, {"params": [b], "lr": 0.5}], 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
    for _ in range(2):
        a.grad, b.grad = torch.ones(1), torch.ones(1)
        optimizer.step()
        scheduler.step()
    assert (a.item(), b.item()) == (pytest.approx(1 - 0.11), pytest.approx(1 - 0.55))


SGD_WITH_SHIFT = RECIPES["posit8"].extended(first_moment="posit8_1/shift=2")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: SGD(p, -0.1), "lr=-0.1; expected a number, at least 0"),
        (lambda p: SGD(p, float("nan")), "lr=nan; expected a number, at least 0"),
        (lambda p: SGD(p, 0.1, momentum=-1), "momentum=-1; expected a number, at least 0"),
        (lambda p: SGD(p, 0.1, nesterov=True), "nesterov=True with momentum=0; expected a momentum above 0"),
        (
            lambda p: AdamW(p, betas=(0.9, 1.0)),
            "betas[1]=1.0; expected a number, at least 0 and below 1",
        ),
        (lambda p: AdamW(p, eps=-1.0), "eps=-1.0; expected a number, at least 0"),
        (
            lambda p: LARS(p, 1.0, trust_coefficient=-1.0),
            "trust_coefficient=-1.0; expected a number, at least 0",
        ),
        (lambda p: SGD(p, float("inf")), "lr=inf; expected a number, at least 0 and finite"),
        (lambda p: SGD(p, "fast"), "lr='fast'; expected a number, at least 0"),
        (lambda p: SGD(p, torch.ones(1)), "lr=tensor([1.]); expected a number, at least 0"),
        (lambda p: AdamW(p, lr=torch.ones(2)), "lr=tensor([1., 1.]); expected a number, at least 0"),
        (lambda p: AdamW(p, lr=None), "lr=None; expected a number, at least 0"),
        (lambda p: AdamW(p, betas=(0.9,)), "betas=(0.9,); expected two numbers"),
        (lambda p: AdamW(p, betas=(0.9, 0.99, 0.999)), "betas=(0.9, 0.99, 0.999); expected two numbers"),
        (lambda p: AdamW(p, betas=0.9), "betas=0.9; expected two numbers"),
        (lambda p: AdamW(p, recipe="fp9"), "there is no recipe 'fp9'"),
        (lambda p: SGD(p, 0.1, recipe=SGD_WITH_SHIFT), "what is stored has no room for a shift"),
    ],
)
def test_an_option_out_of_range_is_refused(make: Callable[..., Optimizer], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        make(parameters())


# What no group may have, with what is said.
GROUPS: list[tuple[Callable[..., Optimizer], dict[str, object], str]] = [
    (AdamW, {"lr": -1.0}, "lr=-1.0; expected a number, at least 0"),
    (AdamW, {"lr": "x"}, "lr='x'; expected a number, at least 0"),
    (AdamW, {"betas": (2.0, 0.9)}, "betas[0]=2.0; expected a number, at least 0 and below 1"),
    (AdamW, {"betas": 0.9}, "betas=0.9; expected two numbers"),
    (AdamW, {"eps": -1e-8}, "eps=-1e-08; expected a number, at least 0"),
    (AdamW, {"weight_decay": float("nan")}, "weight_decay=nan; expected a number, at least 0"),
    (AdamW, {"recipe": "fp8-lm"}, "recipe='fp8-lm' in a group of parameters; AdamW has one for all"),
    (lambda p: SGD(p, 0.1), {"lr": float("inf")}, "lr=inf; expected a number, at least 0 and finite"),
    (lambda p: SGD(p, 0.1), {"momentum": -0.5}, "momentum=-0.5; expected a number, at least 0"),
    (lambda p: SGD(p, 0.1), {"nesterov": True}, "nesterov=True with momentum=0; expected a momentum"),
    (lambda p: SGD(p, 0.1, momentum=0.9, nesterov=True), {"momentum": 0}, "nesterov=True with momentum=0"),
    (
        lambda p: LARS(p, 0.1),
        {"trust_coefficient": -1},
        "trust_coefficient=-1; expected a number, at least 0",
    ),
    (lambda p: LARS(p, 0.1), {"weight_decay": None}, "weight_decay=None; expected a number, at least 0"),
]


@pytest.mark.parametrize(("make", "option", "said"), GROUPS)
def test_an_option_out_of_range_is_refused_in_a_group_too(
    make: Callable[..., Optimizer], option: dict[str, object], said: str
) -> None:
    w, bias = (nn.Parameter(torch.ones(2)) for _ in range(2))
    with pytest.raises(ArgumentError, match=re.escape(said)):
        make([{"params": [w], **option}])
    optimizer = make([w])
    with pytest.raises(ArgumentError, match=re.escape(said)):
        optimizer.add_param_group({"params": [bias], **option})
    assert len(optimizer.param_groups) == 1


def test_a_group_is_checked_with_the_options_that_it_takes_from_the_optimizer() -> None:
    w = nn.Parameter(torch.ones(2))
    optimizer = SGD([{"params": [w], "nesterov": True, "momentum": 0.5, "name": "a label of its own"}], 0.1)
    w.grad = torch.ones(2)
    optimizer.step()
    assert w.tolist() == pytest.approx([1 - 0.1 * 1.5] * 2)
    assert AdamW([{"params": [w], "betas": [0.5, 0.9]}]).param_groups[0]["betas"] == [0.5, 0.9]


@pytest.mark.parametrize("option", [{"amsgrad": True}, {"maximize": True}, {"dampening": 0.1}])
def test_an_option_of_torch_that_would_do_nothing_in_a_group_is_refused(option: dict[str, object]) -> None:
    w, bias = (nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = SGD([w], lr=0.1)
    with pytest.raises(ArgumentError, match=f"{next(iter(option))}=.*has no such option"):
        optimizer.add_param_group({"params": [bias], **option})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [bias], **dict.fromkeys(option, False)})


@pytest.mark.parametrize("option", [{"decoupled_weight_decay": False}, {"nesterov": True}, {"amsgrad": True}])
def test_an_option_of_adam_that_would_do_nothing_in_a_group_is_refused(option: dict[str, object]) -> None:
    w = nn.Parameter(torch.ones(2))
    with pytest.raises(ArgumentError, match=f"{next(iter(option))}=.*AdamW of fewbits has no such option"):
        AdamW([{"params": [w], **option}])
    AdamW([{"params": [w], **{name: not value for name, value in option.items()}}])


@pytest.mark.parametrize(
    ("torchs", "ours"),
    [
        (lambda p: torch.optim.SGD(p, 0.1, maximize=True), lambda p: SGD(p, 0.1)),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.5), lambda p: SGD(p, 0.1)),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), AdamW),
        (lambda p: torch.optim.AdamW(p, maximize=True), AdamW),
    ],
)
def test_a_state_with_an_option_of_torch_that_would_do_nothing_is_refused(
    torchs: Callable[..., torch.optim.Optimizer], ours: Callable[..., Optimizer]
) -> None:
    w = nn.Parameter(torch.ones(2))
    mine = ours([w])
    before = mine.state_dict()
    with pytest.raises(ArgumentError, match=r"in the state; .* of fewbits has no such option"):
        mine.load_state_dict(torchs([w]).state_dict())
    assert mine.state_dict() == before


def test_a_state_of_torch_whose_options_do_the_same_is_taken_over() -> None:
    for theirs, mine in ((torch.optim.SGD, SGD), (torch.optim.AdamW, AdamW)):
        w, v = (nn.Parameter(torch.ones(4)) for _ in range(2))
        ours, plain = mine([w], lr=0.1), theirs([v], lr=0.3)
        ours.load_state_dict(plain.state_dict())
        w.grad, v.grad = torch.arange(4.0), torch.arange(4.0)
        ours.step()
        plain.step()
        assert torch.allclose(w, v)


@pytest.mark.parametrize("loss_scale", [0.0, -1.0, math.inf, math.nan, "a", None])
def test_a_loss_scale_that_nothing_can_have_is_refused(loss_scale: Any) -> None:
    w = nn.Parameter(torch.ones(2))
    w.grad = torch.full((2,), 4.0)
    with pytest.raises(
        ArgumentError, match=f"loss_scale={loss_scale!r}; expected a number above 0 and finite"
    ):
        SGD([w], 0.1).clip_(1.0, loss_scale=loss_scale)
    assert w.grad.tolist() == [4, 4]
    assert SGD([w], 0.1).clip_(1.0, loss_scale=torch.tensor(4.0)) == pytest.approx(math.sqrt(2))
    assert w.grad.tolist() == pytest.approx([4 / math.sqrt(2)] * 2)


@pytest.mark.parametrize("max_norm", [0.0, -1.0, float("nan"), "a", None])
def test_a_norm_that_nothing_can_have_is_refused(max_norm: Any) -> None:
    w = nn.Parameter(torch.ones(2))
    w.grad = torch.ones(2)
    with pytest.raises(ArgumentError, match=f"max_norm={max_norm!r}; expected a norm above 0"):
        SGD([w], 0.1).clip_(max_norm)
    assert torch.equal(w.grad, torch.ones(2))


@pytest.mark.parametrize("make", [lambda p: SGD(p, 0.1), AdamW, lambda p: LARS(p, 0.1)])
def test_a_sparse_gradient_is_refused_before_anything_moves(make: Callable[..., Optimizer]) -> None:
    first, table = nn.Linear(4, 4), nn.Embedding(10, 4, sparse=True)
    optimizer = make([*first.parameters(), *table.parameters()])
    first(table(torch.tensor([1]))).sum().backward()
    before = [p.detach().clone() for p in first.parameters()]
    with pytest.raises(ArgumentError, match="make the embedding with sparse=False"):
        optimizer.step()
    assert all(torch.equal(p, b) for p, b in zip(first.parameters(), before, strict=True))
    assert not optimizer.state


def test_a_sparse_gradient_that_is_to_be_packed_is_refused_by_name() -> None:
    table = prepare(nn.Embedding(10, 4, sparse=True), "fp8-lm")
    packing = SGD(table.parameters(), lr=0.1, recipe="fp8-lm")
    with pytest.raises(ArgumentError, match=r"shape \(10, 4\); .*make the embedding with sparse=False"):
        table(torch.tensor([1])).sum().backward()
    assert not packing.state


def test_a_sparse_gradient_is_refused() -> None:
    table = nn.Embedding(10, 4, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ArgumentError, match="make the embedding with sparse=False"):
        SGD(table.parameters(), 0.1).step()


def test_stochastic_updates_repeat_under_the_same_seed() -> None:
    def run(seed: int, recipe: Recipe) -> torch.Tensor:
        w = nn.Parameter(torch.ones(100, dtype=torch.bfloat16))
        optimizer = SGD([w], 1e-4, recipe=recipe)
        torch.manual_seed(seed)
        for _ in range(5):
            w.grad = torch.ones_like(w)
            optimizer.step()
        return w.detach()

    recipe = FP32.extended(parameter="bf16", update="stochastic")
    assert torch.equal(run(1, recipe), run(1, recipe))
    assert not torch.equal(run(1, recipe), run(2, recipe))


@pytest.mark.parametrize("saved", [False, True])
def test_replicas_draw_other_numbers_in_each_step_and_parameter(
    monkeypatch: pytest.MonkeyPatch, saved: bool
) -> None:
    """Updates of an eighth of a unit move 16-bit weights as far as they should, on the mean of all draws."""
    monkeypatch.setattr(optimizers, "processes", lambda: 2)
    recipe = FP32.extended(parameter="bf16", update="stochastic")
    steps, unit = 64, 2.0**-7

    def run(start: int) -> tuple[torch.Tensor, SGD]:
        ws = [nn.Parameter(torch.ones(64, dtype=torch.bfloat16)) for _ in range(2)]
        optimizer = SGD(ws, unit / 8, recipe=recipe)
        optimizer.param_groups[0]["steps"] = start
        for step in range(steps):
            torch.manual_seed(step)  # of a process's own, which has no say
            for w in ws:
                w.grad = -torch.ones_like(w)
            optimizer.step()
            if saved and step == steps // 2:
                state = optimizer.state_dict()
                optimizer = SGD(ws, unit / 8, recipe=recipe)
                optimizer.load_state_dict(state)
        return torch.stack([w.detach().float() for w in ws]), optimizer

    moved, optimizer = run(0)
    assert optimizer.param_groups[0]["steps"] == steps
    taken = (moved - 1) / unit
    # Each of 128 weights: 64 draws of an eighth, that is 8 of standard deviation 2.6.
    assert abs(float(taken.mean()) - 8) < 4 * 2.65 / 128**0.5
    assert 1.8 < float(taken.std()) < 3.6
    assert not torch.equal(moved[0], moved[1])
    again, _ = run(0)
    assert torch.equal(moved, again)
    assert not torch.equal(moved, run(1000)[0])


def test_a_rate_that_is_a_tensor_stays_what_it_was() -> None:
    for make in (LARS, SGD, AdamW):
        results = []
        for rate in (0.1, torch.tensor(0.1)):
            torch.manual_seed(0)
            layers = [nn.Parameter(torch.randn(4, 4)) for _ in range(2)]
            optimizer = make(layers, rate)
            for _ in range(3):
                for w in layers:
                    w.grad = w.detach().sin()
                optimizer.step()
            assert float(rate) == pytest.approx(0.1)
            assert optimizer.param_groups[0]["lr"] is rate
            results.append(torch.stack([w.detach() for w in layers]))
        torch.testing.assert_close(*results)


def test_a_compiled_step_of_lars_is_the_step() -> None:
    """With the backend that runs the operations as they are."""
    ends = []
    for compiles in (False, True):
        given = [nn.Parameter(torch.linspace(-1, 2, 12).reshape(3, 4))]
        optimizer = LARS(given, 1.0, trust_coefficient=0.1)
        go = torch.compile(optimizer.step, backend="eager") if compiles else optimizer.step
        given[0].grad = torch.linspace(0, 1, 12).reshape(3, 4)
        go()
        ends.append(given[0].detach())
    torch._dynamo.reset()
    torch.testing.assert_close(*ends, rtol=1e-6, atol=0)
