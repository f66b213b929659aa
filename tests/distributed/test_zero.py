"""Each process holds the optimizer's state of its own tensors, and the bits stay."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import fewbits as fb
from fewbits.distributed import CodecState, ZeroOptimizer, average_gradients
from fewbits.distributed.zero import owners
from fewbits.files.nested import from_bytes, to_bytes
from fewbits.nn import prepare
from fewbits.optim import LARS, SGD, AdamW
from fewbits.recipes.parameter_marks import is_rounded, take_unrounded
from tests.distributed.team import Team
from tests.distributed.test_collectives import same_everywhere

Teams = Callable[[int], Team]
LEVELS = ("fp8-lm-o1", "fp8-lm-o2", "fp8-lm")
HELD = (  # weights that are packed, of a format without scales and of some with
    "fp8-lm:parameter=posit8_1,has_master=yes,master=fp16",
    "fp8-lm:parameter=block(element=fp8_e4m3,scale=e8m0,size=tensor)/rceil,has_master=yes",
    "fp8-lm:parameter=mxfp4,has_master=yes",
    "fixed16",
)
OTHERS = ("fp32", "bf16-only", "bf16-only-kahan", "fp16-no-scaling")


def test_the_largest_tensors_go_to_who_has_least() -> None:
    assert owners([], 3) == []
    assert owners([5, 5, 5], 2) == [0, 1, 0]
    sizes = torch.randint(1, 1000, (60,), generator=torch.Generator().manual_seed(0)).tolist()
    for processes in (1, 2, 3, 7):
        load = [0] * processes
        for size, owner in zip(sizes, owners(sizes, processes), strict=True):
            load[owner] += size
        assert sum(load) == sum(sizes)
        assert max(load) - min(load) <= max(sizes)  # of a greedy deal
        assert max(load) <= 4 / 3 * max(sum(sizes) / processes, *sizes)  # Graham 1969: of the best one


def model_of(recipe: str) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(20, 61), nn.ReLU(), nn.Linear(61, 40, bias=False), nn.LayerNorm(40), nn.ReLU()]
    return prepare(nn.Sequential(*layers, nn.Linear(40, 5)), recipe)


def rounds(rank: int, count: int, first: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for step in range(first, first + count):
        generator = torch.Generator().manual_seed(100 * step + rank)
        yield torch.randn(6, 20, generator=generator), torch.randint(5, (6,), generator=generator)


def gradients_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    model.zero_grad()
    nn.functional.cross_entropy(model(x).float(), y).backward()


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1).float() for p in model.parameters()]).view(torch.int32)


def steps(
    model: nn.Module,
    optimizer: Any,
    rank: int,
    count: int,
    *,
    first: int = 0,
    codec: str = "",
    max_norm: float = 0.5,
) -> list[float]:
    """Train; with a codec all processes get the means of all gradients before."""
    norms = []
    for x, y in rounds(rank, count, first):
        gradients_of(model, x, y)
        if codec:
            average_gradients(model, codec)
        norms.append(optimizer.clip_(max_norm))
        optimizer.step()
    return norms


def plain(recipe: str, rank: int, count: int, codec: str = "fp32") -> tuple[nn.Module, AdamW, list[float]]:
    model = model_of(recipe)
    optimizer = AdamW(model.parameters(), 1e-2, recipe=recipe)
    return model, optimizer, steps(model, optimizer, rank, count, codec=codec)


def dealt(recipe: str, codec: str | None = "fp32", **options: Any) -> tuple[nn.Module, ZeroOptimizer]:
    model = model_of(recipe)
    return model, ZeroOptimizer(AdamW(model.parameters(), 1e-2, recipe=recipe), codec, **options)


def keeps_the_bits(rank: int, size: int) -> None:
    for recipe in (*LEVELS, *HELD, *OTHERS):
        whole, alone, norms = plain(recipe, rank, 5)
        model, zero = dealt(recipe)
        assert steps(model, zero, rank, 5) == norms, recipe
        assert torch.equal(weights(model), weights(whole)), recipe
        assert same_everywhere(weights(model))
        # The states of all are those of the optimizer alone, once each.
        own, every = zero.nbytes(), alone.nbytes()
        for role in ("first_moment", "second_moment", "master", "compensation"):
            total = torch.tensor(own[role])
            torch.distributed.all_reduce(total)
            assert total == every[role], (recipe, role)
            largest = 61 * 40 * 4
            assert own[role] <= every[role] / size + largest
        assert 0 < own["first_moment"] < every["first_moment"]
        saved = zero.state_dict()
        assert to_bytes(saved["state"]) == to_bytes(alone.state_dict()["state"])
        assert saved["param_groups"] == alone.state_dict()["param_groups"]
        # Gradients that every process has the mean of, narrow ones too.
        whole, alone, norms = plain(recipe, rank, 3, "mxfp4")
        model, zero = dealt(recipe, None)
        assert steps(model, zero, rank, 3, codec="mxfp4") == norms
        assert torch.equal(weights(model), weights(whole))
        assert [p.grad is None for p in model.parameters()] == [owner != rank for owner in zero.owner]


def test_processes_that_deal_out_states_end_with_the_bits_of_those_that_do_not(team: Teams) -> None:
    team(3).run(keeps_the_bits)


def means_again(rank: int, size: int) -> None:
    whole, *_ = plain("fp32", rank, 2)
    model, zero = dealt("fp32")
    steps(model, zero, rank, 2)
    x, y = next(rounds(rank, 1, 5))
    gradients_of(model, x, y)  # the model drops the old ones, and nobody asks the optimizer to
    gradients_of(whole, x, y)
    average_gradients(whole, "fp32")
    twins = {id(p): q for p, q in zip(model.parameters(), whole.parameters(), strict=True)}
    means = dict(zero.gradients())
    assert len(means) == zero.owner.count(rank)
    for p, mean in means.items():
        assert torch.equal(mean, twins[id(p)].grad)


def test_gradients_after_a_step_are_new_ones(team: Teams) -> None:
    team(3).run(means_again)


def travels_as_held(rank: int, size: int) -> None:
    values = sum(p.numel() for p in model_of("fp32").parameters())
    per_value = {}
    for recipe in ("fp8-lm-o2", "fp8-lm", *HELD[:3]):
        model, zero = dealt(recipe)
        steps(model, zero, rank, 3)
        sent = torch.tensor(float(zero.traffic.sent["broadcast"].nbytes))
        torch.distributed.all_reduce(sent)
        per_value[recipe] = float(sent) / 3 / values / (size - 1)
    norm = 80 / values  # of what the layer norm has, which stays float32
    assert per_value["fp8-lm-o2"] == 4
    assert per_value["fp8-lm"] == pytest.approx(2, abs=2 * norm + 0.01)
    assert per_value[HELD[0]] == pytest.approx(1, abs=4 * norm + 0.01)
    assert per_value[HELD[1]] == pytest.approx(1, abs=4 * norm + 0.03)
    assert per_value[HELD[2]] == pytest.approx(0.53, abs=4 * norm + 0.05)
    # Values that the format does not have travel as they are, and arrive with all their bits.
    model, zero = dealt(HELD[0])
    before = [take_unrounded(p) is not None for p in model.parameters()]
    held = [is_rounded(p) and zero.owner[i] == rank for i, p in enumerate(model.parameters())]
    assert before == held  # what a master copy begins from lies with the owner alone
    assert any(held)
    model, zero = dealt(HELD[0])
    gradients_of(model, *next(rounds(rank, 1)))

    def spoil(*_: object) -> None:
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                if zero.owner[i] == rank:
                    p.copy_(torch.linspace(-0.0, 1 / 3, p.numel()).view(p.shape))

    zero.optimizer.register_step_post_hook(spoil)
    zero.step()
    for p in model.parameters():
        assert torch.equal(p, torch.linspace(-0.0, 1 / 3, p.numel()).view(p.shape))


def test_weights_travel_in_the_format_in_which_they_are_held(team: Teams) -> None:
    team(2).run(travels_as_held)


def rounded_to_e4m3(x: torch.Tensor, times: int) -> torch.Tensor:
    """Return what APS makes of a gradient, whose power of two comes from the largest of all processes."""
    largest = x.abs().max()
    torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
    scale = torch.exp2(8 - torch.ceil(torch.log2(largest * times)))
    return (x * scale).to(torch.float8_e4m3fn).float() / scale


def narrow_gradients(rank: int, size: int) -> None:
    model, zero = dealt("fp32", "fp8_e4m3:aps")
    gradients_of(model, *next(rounds(rank, 1)))
    wanted = []
    for p in model.parameters():
        assert p.grad is not None
        total = rounded_to_e4m3(p.grad, 1)
        torch.distributed.all_reduce(total)
        wanted.append(total / size)
    zero.average_gradients()
    zero.average_gradients()  # they are dealt out already
    for i, p in enumerate(model.parameters()):
        assert (p.grad is None) == (zero.owner[i] != rank)
        if p.grad is not None:
            assert torch.allclose(p.grad, wanted[i], rtol=1e-6, atol=0)
    # What was left out is remembered.
    codec = "topk:density=0.2,feedback"
    state = CodecState(codec)
    model, zero = dealt("fp8-lm-o1", codec, state=state)
    steps(model, zero, rank, 4)
    assert same_everywhere(weights(model))
    left = state.state_dict()["residuals"]
    assert sorted(left) == [str(i) for i in range(len(zero.owner))]
    assert any(x.any() for x in left.values())
    assert state.calls == 4
    sent = zero.traffic.sent
    assert sent["all_to_all"].nbytes < 0.5 * sent["reduce_scatter"].wide
    # A gradient that is not finite reaches the owner as NaN.
    model, zero = dealt("fp32", "mxfp4")
    gradients_of(model, *next(rounds(rank, 1)))
    if rank == 0:
        for p in model.parameters():
            assert p.grad is not None
            p.grad.view(-1)[0] = torch.inf
    assert zero.clip_(1.0) != zero.clip_(1.0)
    # A parameter without a gradient anywhere stays; one with a gradient on one process moves.
    whole, (model, zero) = model_of("fp32"), dealt("fp32", "fp32")
    before = [p.detach().clone() for p in model.parameters()]
    for each in (whole, model):
        gradients_of(each, *next(rounds(rank, 1)))
        first, second, *_ = each.parameters()
        first.grad = None
        second.grad = second.grad if rank else None
    average_gradients(whole, "fp32")
    assert zero.clip_(0.5) == AdamW(whole.parameters()).clip_(0.5)  # it adds nothing to the norm
    zero.step()
    moved = [not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)]
    assert moved == [False] + [True] * (len(before) - 1)


def test_gradients_go_to_their_owners_in_a_codec(team: Teams) -> None:
    team(2).run(narrow_gradients)


def saves(rank: int, size: int, *, folder: str) -> None:
    for number, recipe in enumerate(("fp8-lm", HELD[0])):
        model, zero = dealt(recipe, None)
        steps(model, zero, rank, 3, codec="fp32")
        state = zero.state_dict()
        if rank == 0:
            whole = {"model": dict(model.state_dict()), "optimizer": state}
            (Path(folder) / str(number)).write_bytes(to_bytes(whole))


def goes_on(rank: int, size: int, *, folder: str) -> None:
    for number, recipe in enumerate(("fp8-lm", HELD[0])):
        saved: Any = from_bytes((Path(folder) / str(number)).read_bytes())
        found = []
        for wrapped in (False, True):
            model, zero = dealt(recipe, None)
            optimizer = zero if wrapped else AdamW(model.parameters(), 1e-2, recipe=recipe)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            held = [i for i, p in enumerate(model.parameters()) if optimizer.state.get(p)]
            assert held == [i for i, owner in enumerate(zero.owner) if owner == rank or not wrapped]
            steps(model, optimizer, rank, 3, first=3, codec="fp32")
            found.append(weights(model))
        assert torch.equal(*found)
        assert not torch.equal(found[0], weights(model_of(recipe)))


def test_a_state_loads_with_another_number_of_processes(team: Teams, tmp_path: Path) -> None:
    team(2).run(partial(saves, folder=str(tmp_path)))
    team(3).run(partial(goes_on, folder=str(tmp_path)))


def hooked(rank: int, size: int) -> None:
    """Hooks of states run as those of torch's own optimizer, and may return another state."""

    def called(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[str]:
        said: list[str] = []
        optimizer.register_state_dict_pre_hook(lambda own: said.append(f"save {own is optimizer}"))
        optimizer.register_state_dict_post_hook(lambda own, state: {**state, "note": len(state["state"])})
        optimizer.register_load_state_dict_pre_hook(
            lambda own, state: said.append(f"load {state.pop('note')}")
        )
        optimizer.register_load_state_dict_post_hook(lambda own: said.append(f"loaded {own is optimizer}"))
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        state = optimizer.state_dict()
        optimizer.load_state_dict(state)
        return [*said, f"kept {state['note']}"]  # hooks have a copy

    plain, dealt = nn.Linear(3, 4), nn.Linear(3, 4)
    alone = called(torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9), plain)
    wrapped = torch.optim.SGD(dealt.parameters(), 0.1, momentum=0.9)
    assert called(ZeroOptimizer(wrapped, "fp32"), dealt) == alone
    assert alone == ["save True", "load 2", "loaded True", "kept 2"]


def test_hooks_of_states_run_as_torch_has_them(team: Teams) -> None:
    team(2).run(hooked)


def other_optimizers(rank: int, size: int) -> None:
    made: list[Callable[[Any], torch.optim.Optimizer]] = [
        lambda p: torch.optim.AdamW(p, 1e-2),
        lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9),
        lambda p: SGD(p, 1e-2, momentum=0.9),
        lambda p: LARS(p, 1.0),
    ]
    for make, sharded in product(made, (False, True)):
        model = model_of("fp32")
        optimizer: Any = make(list(model.parameters()))
        wrapped = ZeroOptimizer(optimizer, "fp32") if sharded else optimizer
        schedule = torch.optim.lr_scheduler.ExponentialLR(wrapped, 0.5)
        for x, y in rounds(rank, 4):
            gradients_of(model, x, y)
            if not sharded:
                average_gradients(model, "fp32")
            wrapped.step()
            schedule.step()
        assert optimizer.param_groups[0]["lr"] == wrapped.param_groups[0]["lr"] < 1
        if not sharded:
            expected = weights(model)
        assert torch.equal(weights(model), expected)
    model = model_of("fp32")
    zero = ZeroOptimizer(torch.optim.SGD(list(model.parameters())[:2], 1e-2), "fp32")
    zero.add_param_group({"params": list(model.parameters())[2:], "lr": 0.1})
    assert sorted(set(zero.owner)) == list(range(size))
    assert len(zero.owner) == len(list(model.parameters()))

    def closure() -> float:
        gradients_of(model, *next(rounds(rank, 1)))
        return 7.0

    before = weights(model)
    assert zero.step(closure) == 7.0
    assert same_everywhere(weights(model))
    assert not torch.equal(weights(model), before)
    assert zero.defaults["lr"] == 1e-2


def test_any_optimizer_whose_states_belong_to_one_parameter_is_dealt_out(team: Teams) -> None:
    team(3).run(other_optimizers)


def skips(rank: int, size: int) -> None:
    """Gradients that were averaged and given up leave no trace, however they were given up."""

    def forget(model: nn.Module, optimizer: Any, how: int) -> None:
        if how == 0:
            model.zero_grad()
        elif how == 1:
            optimizer.zero_grad(set_to_none=optimizer.recipe.held_gradient is not None)
        elif how == 2:
            for p in model.parameters():
                p.grad = None

    def train(model: nn.Module, optimizer: Any, codec: str) -> list[float]:
        norms = []
        for how, (x, y) in enumerate(rounds(rank, 4)):
            nn.functional.cross_entropy(model(x).float(), y).backward()
            if codec:
                average_gradients(model, codec)
            norms.append(optimizer.clip_(0.5))
            if how < 3:
                forget(model, optimizer, how)
        optimizer.step()
        return norms

    for recipe in ("fp32", "fp8-lm-o1"):
        whole = model_of(recipe)
        norms = train(whole, AdamW(whole.parameters(), 1e-2, recipe=recipe), "fp32")
        model, zero = dealt(recipe)
        assert train(model, zero, "") == norms
        assert torch.equal(weights(model), weights(whole))

    # A closure that clips.
    def step(model: nn.Module, optimizer: Any, codec: str) -> None:
        def closure() -> float:
            gradients_of(model, *next(rounds(rank, 1)))
            if codec:
                average_gradients(model, codec)
            norms.append(float(optimizer.clip_(0.01)))
            return 0.0

        optimizer.step(closure)

    norms = []
    whole, (model, zero) = model_of("fp32"), dealt("fp32")
    alone = AdamW(whole.parameters(), 1e-2)
    for _ in range(2):
        step(whole, alone, "fp32")
        step(model, zero, "")
        assert norms[-1] == norms[-2] > 0
    assert torch.equal(weights(model), weights(whole))
    # No mean is right for gradients that were added to means, be they float32 since they were clipped.
    narrow = prepare(nn.Linear(20, 5), "fp16-no-scaling")
    for model, zero in (
        (narrow, ZeroOptimizer(SGD(narrow.parameters(), 0.1, recipe="fp16-no-scaling"), "fp32")),
        dealt("fp32"),
    ):
        gradients_of(model, *next(rounds(rank, 1)))
        zero.clip_(0.01)
        model(torch.ones(1, 20)).sum().backward()
        for call in (lambda: zero.clip_(1.0), zero.step):  # noqa: B023 - called at once
            with pytest.raises(fb.ArgumentError, match="were added to those that were averaged already"):
                call()
        zero.zero_grad()
    gradients_of(model, *next(rounds(rank, 1)))
    zero.step()
    assert same_everywhere(weights(model))


def test_a_step_that_is_skipped_leaves_no_trace_in_the_next(team: Teams) -> None:
    team(3).run(skips)


def meets_one_new_gradient(rank: int, size: int) -> None:
    """Of one of the parameters of others, after all were averaged."""
    model, zero = dealt("fp32")
    gradients_of(model, *next(rounds(rank, 1)))
    zero.clip_(0.01)
    theirs = [p for p, owner in zip(model.parameters(), zero.owner, strict=True) if owner != rank]
    assert len(theirs) > 1
    theirs[0].grad = torch.ones_like(theirs[0])
    with pytest.raises(fb.ArgumentError, match="were added to those that were averaged already"):
        zero.step()


def test_one_new_gradient_is_enough_to_refuse_a_step(team: Teams) -> None:
    team(3).run(meets_one_new_gradient)


def refuses_norms(rank: int, size: int) -> None:
    for codec in ("fp32", None):  # one process clips to what is no norm, or to another one, and none waits
        model, deal = dealt("fp32", codec)
        gradients_of(model, *next(rounds(rank, 1)))
        with pytest.raises(fb.ArgumentError, match=r"max_norm=0\.0; expected a norm above 0"):
            deal.clip_([1.0, 0.0][rank])
        with pytest.raises(fb.ArgumentError, match="max_norm='a'; expected a norm above 0"):
            deal.clip_([1.0, "a"][rank])
        with pytest.raises(fb.ArgumentError, match=r"max_norm=tensor.*; expected a norm above 0"):
            deal.clip_([1.0, torch.ones(2)][rank])
        with pytest.raises(fb.ArgumentError, match=r"rank 1 has '.* clipped to 2"):
            deal.clip_([1.0, 2.0][rank])


def refuses(rank: int, size: int) -> None:
    model = model_of("fp32")
    with pytest.raises(fb.ArgumentError, match="scales the loss"):
        dealt("fp16-master")
    with pytest.raises(fb.ArgumentError, match="'muppet' chooses formats by all gradients together"):
        dealt("muppet")
    with pytest.raises(fb.ArgumentError, match=r"LARS with a group.* leave group out of it"):
        ZeroOptimizer(LARS(model.parameters(), 0.1, group=torch.distributed.group.WORLD))
    with pytest.raises(fb.ArgumentError, match="remembers something"):
        dealt("fp32", "mxfp4:feedback")
    _, optimizer, _ = plain("fp32", rank, 1)
    with pytest.raises(fb.ArgumentError, match="has taken steps"):
        ZeroOptimizer(optimizer)
    with pytest.raises(fb.ArgumentError, match=r"Adagrad with states .*makes them as it is constructed"):
        ZeroOptimizer(torch.optim.Adagrad(model.parameters()))
    zero = ZeroOptimizer(AdamW(model.parameters()), "fp32")
    with pytest.raises(fb.ArgumentError, match="expected 1"):
        zero.clip_(1.0, loss_scale=2.0)
    model = model_of("fp32")
    zero = ZeroOptimizer(AdamW(model.parameters()), "fp32")
    steps(model, zero, rank, 1)
    for nothing in ({}, None, {"state": {}}, {"state": {}, "param_groups": [3]}, {"param_groups": []}):
        with pytest.raises(fb.ArgumentError, match=r"is no state; expected what state_dict"):
            zero.load_state_dict(nothing)
    with pytest.raises(fb.ArgumentError, match="that has taken steps"):
        zero.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(AttributeError):
        _ = zero.something
    scaler = torch.amp.GradScaler("cpu")
    gradients_of(model, *next(rounds(rank, 1)))
    scaler.scale(torch.ones(()))
    with pytest.raises(fb.ArgumentError, match="loss scaler"):
        scaler.step(zero)
    # One process fails in its step, and none waits.
    model, zero = dealt("fp32", None)
    gradients_of(model, *next(rounds(rank, 1)))
    own = [p for i, p in enumerate(model.parameters()) if zero.owner[i] == rank]
    if rank == 1:
        own[0].grad = torch.zeros_like(own[0]).to_sparse()
    with pytest.raises(fb.ArgumentError, match="sparse gradient"):
        zero.step()
    # Processes with other models.
    other = nn.Linear(3, 3 + rank)
    zero = ZeroOptimizer(torch.optim.SGD(other.parameters(), 0.1), "fp32")
    other(torch.ones(1, 3)).sum().backward()
    with pytest.raises(fb.ArgumentError, match="processes disagree"):
        zero.step()
    fully_shard(other := nn.Linear(4, 4))
    with pytest.raises(fb.ArgumentError, match="deals out states itself"):
        ZeroOptimizer(torch.optim.SGD(other.parameters(), 0.1))


def test_what_does_not_fit_is_refused_on_every_process(team: Teams) -> None:
    team(2).run(refuses)
    team(2).run(refuses_norms)
