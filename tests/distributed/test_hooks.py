"""Codecs beneath DistributedDataParallel and fully_shard."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import fewbits as fb
from fewbits.distributed import DDPHook, all_reduce, ddp_hook, fsdp_codecs
from tests.distributed.team import Team
from tests.distributed.test_collectives import same_everywhere

Teams = Callable[[int], Team]
BATCH, STEPS = 64, 12


class Model(nn.Module):
    """Two layers, a single number, and a layer that no batch uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(20, 60), nn.Linear(60, 5)
        self.scale = nn.Parameter(torch.ones(1))
        self.unused = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x))) * self.scale


def created(dtype: torch.dtype = torch.float32) -> Model:
    torch.manual_seed(0)
    return Model().to(dtype)


def batches(rank: int, size: int, steps: int = STEPS) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    truth = torch.randn(20, 5, generator=generator)
    for _ in range(steps):
        x = torch.randn(BATCH, 20, generator=generator)
        y = (x @ truth).argmax(1)
        yield x.chunk(size)[rank], y.chunk(size)[rank]


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1).float() for p in model.parameters()])


def trained(model: nn.Module, rank: int, size: int, lr: float = 0.1, accumulate: int = 1) -> float:
    optimizer, losses = torch.optim.SGD(model.parameters(), lr, momentum=0.5), []
    dtype = next(model.parameters()).dtype
    for step, (x, y) in enumerate(batches(rank, size)):
        last = (step + 1) % accumulate == 0
        waits = nullcontext() if last or not isinstance(model, DistributedDataParallel) else model.no_sync()
        with waits:
            loss = nn.functional.cross_entropy(model(x.to(dtype)).float(), y)
            loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    mean = torch.stack(losses[-3:]).mean()
    distributed.all_reduce(mean)
    return float(mean) / size


def wrapped(model: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model, find_unused_parameters=True, **options)


def hooked(codec: str, dtype: torch.dtype = torch.float32, **options: Any) -> tuple[nn.Module, DDPHook]:
    model, hook = wrapped(created(dtype), **options), ddp_hook(codec)
    model.register_comm_hook(None, hook)
    return model, hook


def beneath_ddp(rank: int, size: int) -> None:
    plain = wrapped(created())
    reference = trained(plain, rank, size)
    for codec in (
        "fp32",
        "mxfp8_e4m3",
        "int8_tensor:feedback",
        "fp8_e4m3:auto_scale",
        "mxfp6_e3m2:stochastic",
    ):
        for options in ({}, {"bucket_cap_mb": 0.001}, {"gradient_as_bucket_view": True}):
            model, hook = hooked(codec, **options)
            loss = trained(model, rank, size)
            assert same_everywhere(weights(model)), codec
            assert abs(loss - reference) < 0.05, (codec, loss, reference)
            assert codec == "fp32" or hook.traffic.nbytes < 0.7 * hook.traffic.wide
            if codec == "fp32" and size == 2:  # a sum of two has one order
                assert torch.equal(weights(model), weights(plain))
    for codec in ("mxfp8_e4m3", "topk:density=0.1,feedback"):
        model, _ = hooked(codec, torch.bfloat16)
        assert trained(model, rank, size) < 2.0
        assert same_everywhere(weights(model))
        model, _ = hooked(codec)
        trained(model, rank, size, accumulate=3)
        assert same_everywhere(weights(model))
    for codec in ("powersgd:rank=2", "fp16_compress"):
        model, _ = hooked(codec, bucket_cap_mb=0.001)
        assert abs(trained(model, rank, size) - reference) < 0.3
        assert same_everywhere(weights(model))


@pytest.mark.filterwarnings("ignore")  # of torch about hooks and unused parameters
@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_a_codec_averages_gradients_beneath_ddp(team: Teams, size: int) -> None:
    team(size).run(beneath_ddp)


def powers_of_two(rank: int, size: int) -> None:
    """Four bits are enough with a scale for each layer, and without one nearly all gradients become zero."""
    losses = {}
    for codec in ("fp32", "fp4_e3m0:aps", "fp4_e3m0"):
        torch.manual_seed(0)
        model, _ = hooked(codec)
        losses[codec] = trained(model, rank, size)
    assert abs(losses["fp4_e3m0:aps"] - losses["fp32"]) < 0.1, losses
    assert losses["fp4_e3m0"] - losses["fp32"] > 0.2, losses


@pytest.mark.filterwarnings("ignore")
def test_powers_of_two_train_with_a_scale_that_all_agree_on(team: Teams) -> None:
    team(4).run(powers_of_two)


def feedback_matters(rank: int, size: int) -> None:
    """With feedback all that was left out comes later: the weights move as far as without a codec."""
    moved = {}
    for codec in ("fp32", "topk:density=0.05,feedback", "topk:density=0.05"):
        model, _ = hooked(codec)
        before = weights(model)
        trained(model, rank, size, lr=0.02)
        moved[codec] = weights(model) - before
    exact = moved["fp32"]
    with_feedback, without = (
        float((moved[f"topk:density=0.05{rest}"] - exact).norm() / exact.norm()) for rest in (",feedback", "")
    )
    assert with_feedback < 0.8 * without


def resumes(rank: int, size: int) -> None:
    """A state that is saved and loaded in another bucket layout goes on with the same bits."""

    def steps(model: nn.Module, rounds: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for x, y in rounds:
            model.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for p in model.parameters():
                    if p.grad is not None:
                        p.sub_(p.grad, alpha=0.1)

    rounds = list(batches(rank, size))
    codec = "topk:density=0.2,feedback,momentum=0.9"
    whole, _ = hooked(codec)
    steps(whole, rounds)
    first, hook = hooked(codec)
    steps(first, rounds[:6])
    second, other = hooked(codec)
    second.load_state_dict(first.state_dict())
    other.load_state_dict(second, hook.state_dict(first))
    assert sorted(hook.state_dict(first)["residuals"]) == sorted(n for n, _ in created().named_parameters())
    steps(second, rounds[6:])
    assert torch.equal(weights(second), weights(whole))
    # Without what was left out it goes on otherwise.
    third, _ = hooked(codec)
    third.load_state_dict(first.state_dict())
    steps(third, rounds[6:])
    assert not torch.equal(weights(third), weights(whole))
    # For another number of processes: the sum stays.
    state = hook.state_dict(first)
    other.load_state_dict(second, [state] * 3)
    assert torch.allclose(
        other.state_dict(second)["residuals"]["first.weight"],
        state["residuals"]["first.weight"] * len(range(rank, 3, size)),
    )
    with pytest.raises(fb.ArgumentError, match="state of codec"):
        ddp_hook("mxfp4:feedback").load_state_dict(second, state)
    with pytest.raises(fb.ArgumentError, match="no parameter here"):
        other.load_state_dict(nn.Linear(2, 2), state)


@pytest.mark.filterwarnings("ignore")
def test_feedback_pays_back_and_is_saved(team: Teams) -> None:
    team(2).run(feedback_matters)
    team(2).run(resumes)


def differing(rank: int, size: int) -> None:
    model, _ = hooked("mxfp4" if rank else "mxfp6_e2m3")
    x, y = next(batches(rank, size))
    with pytest.raises(RuntimeError, match="processes disagree"):
        nn.functional.cross_entropy(model(x), y).backward()


@pytest.mark.filterwarnings("ignore")
def test_hooks_with_different_codecs_stop_on_every_rank(team: Teams) -> None:
    team(2).run(differing)


def sharded(codec: str | None, weight: str | None = None, dtype: torch.dtype = torch.float32) -> Any:
    model = created(dtype)
    del model.unused
    for layer in (model.first, model.last):
        fully_shard(layer)
    fully_shard(model)
    made = fsdp_codecs(model, gradient=codec, weight=weight) if codec or weight else None
    return model, made


def full(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.full_tensor().detach().reshape(-1).float() for p in model.parameters()])


def beneath_fsdp(rank: int, size: int) -> None:
    plain, _ = sharded(None)
    reference = trained(plain, rank, size)
    for codec, weight in (
        ("fp32", "fp32"),
        ("mxfp8_e4m3", None),
        (None, "mxfp8_e4m3"),
        ("mxfp8_e4m3", "mxfp8_e4m3"),
        ("fp8_e5m2:aps,feedback", None),
        ("fp8_e4m3:auto_scale", "bf16"),
        ("mxfp6_e3m2:stochastic", "mxfp8_e4m3"),
    ):
        model, made = sharded(codec, weight)
        loss = trained(model, rank, size)
        assert abs(loss - reference) < 0.05, (codec, weight, loss, reference)
        assert same_everywhere(full(model))
        assert made.traffic.nbytes > 0
        if (codec, weight) == ("fp32", "fp32"):
            assert torch.allclose(full(model), full(plain), atol=1e-6)
    model, made = sharded("topk:density=0.1,feedback", dtype=torch.bfloat16)
    trained(model, rank, size)
    assert same_everywhere(full(model))
    state = made.state_dict()
    assert sorted(state) == [":gradient", "first:gradient", "last:gradient"]
    assert all(x.any() for x in state["first:gradient"]["residuals"].values())
    _, other = sharded("topk:density=0.1,feedback")
    other.load_state_dict(state)
    assert other.state_dict()["first:gradient"]["calls"] == state["first:gradient"]["calls"] > 0
    with pytest.raises(fb.ArgumentError, match="expected that of this process"):
        other.load_state_dict({})
    before = str(other.state_dict())
    damaged = {**state, "last:gradient": {**state["last:gradient"], "codec": "fp32"}}
    for wrong in (None, [], {**damaged, ":gradient": {**state[":gradient"], "seed": 9}}):
        with pytest.raises(fb.ArgumentError, match=r"expected that of this process|the state of codec fp32"):
            other.load_state_dict(wrong)
    assert str(other.state_dict()) == before
    with pytest.raises(fb.ArgumentError, match="without fully_shard"):
        fsdp_codecs(created(), gradient="mxfp4")
    with pytest.raises(fb.ArgumentError, match="go together"):
        fsdp_codecs(model, between="mxfp4")
    with pytest.raises(fb.ArgumentError, match="other draws"):
        fsdp_codecs(model, weight="mxfp4:stochastic")
    with pytest.raises(fb.ArgumentError, match="only copied"):
        fsdp_codecs(model, weight="mxfp4:feedback")


def refused_codecs(rank: int, size: int) -> None:
    """Whatever is wrong beside a codec that is right, the model sends what it sent before."""
    model, _ = sharded(None)
    everyone = distributed.group.WORLD
    for options, said in (
        ({"weight": "mxfp4:stochastic"}, "other draws"),
        ({"between": "mxfp4", "group": 3}, "no process group"),
        ({"between": "powersgd", "group": everyone}, "ddp_hook"),
        ({"between": "nosuch", "group": everyone}, "no format named"),
        ({"seed": "1"}, "seed='1'; expected an integer"),
    ):
        with pytest.raises(fb.FewbitsError, match=said):
            fsdp_codecs(model, **{"gradient": "mxfp4", **options})
    plain, _ = sharded(None)
    for each in (model, plain):
        x, y = next(batches(rank, size))
        nn.functional.cross_entropy(each(x), y).backward()
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(p.grad.to_local(), q.grad.to_local())


def test_codecs_that_are_refused_leave_the_model_as_it_was(team: Teams) -> None:
    team(2).run(refused_codecs)


def one_after_the_other(rank: int, size: int) -> None:
    """Hooks of a part of all processes: a name that is used again would lead to a group that has ended."""
    part = distributed.new_group([1, 2])
    if rank == 0:
        return
    named: dict[str, object] = {}
    for step in range(4):
        hooks = [ddp_hook("mxfp4", part) for _ in range(1 + step % 2)]
        for hook in hooks:
            own = hook._peers.group
            assert named.setdefault(own.group_name, own) is own
            assert all_reduce(torch.full((3,), float(rank)), "fp32", own).tolist() == [3.0] * 3
        assert len({id(hook._peers.group) for hook in hooks}) == len(hooks)
        for hook in hooks:
            hook.close()


def test_a_hook_follows_another_of_the_same_part_of_all_processes(team: Teams) -> None:
    team(3).run(one_after_the_other)


def buckets_built_anew(rank: int, size: int) -> None:
    """After a restart torch's buckets are those of a first step, and then built anew: blocks are others."""

    def steps(model: nn.Module, first: int) -> None:
        for i in range(first, first + 3):
            model.zero_grad()
            x = torch.randn(4, 7, generator=torch.Generator().manual_seed(100 * i + rank))
            model(x).square().sum().backward()
            with torch.no_grad():
                for p in model.parameters():
                    if p.grad is not None:
                        p.sub_(p.grad, alpha=0.01)

    def fresh(text: str, stay: bool) -> tuple[DistributedDataParallel, DDPHook]:
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(7, 50), nn.Tanh(), nn.Linear(50, 30, bias=False), nn.Linear(30, 1))
        model, hook = DistributedDataParallel(plain, find_unused_parameters=stay), ddp_hook(text, seed=1)
        model.register_comm_hook(None, hook)
        return model, hook

    for text in ("int8_256:feedback", "mxfp4:stochastic", "mxfp8_e4m3"):
        for stay in (True, False):
            whole, hook = fresh(text, stay)
            steps(whole, 0)
            resumed, other = fresh(text, stay)
            resumed.load_state_dict(whole.state_dict())
            other.load_state_dict(resumed, hook.state_dict(whole))
            steps(whole, 3)
            steps(resumed, 3)
            same = [torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True)]
            assert all(same) == stay


@pytest.mark.filterwarnings("ignore")
def test_a_resumed_run_has_the_bits_of_a_whole_one_only_where_buckets_stay(team: Teams) -> None:
    team(2).run(buckets_built_anew)


def between_nodes(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("node", "process"))
    plain = created()
    del plain.unused
    reference = trained(DistributedDataParallel(plain), rank, size)
    model = created()
    del model.unused
    for layer in (model.first, model.last, model):
        fully_shard(layer, mesh=mesh["process"])
    made = fsdp_codecs(model, gradient="bf16", between="mxfp8_e4m3", group=mesh["node"])
    loss = trained(model, rank, size)
    assert abs(loss - reference) < 0.05
    assert same_everywhere(full(model))
    assert sorted(made.states)[:2] == [":between", ":gradient"]


@pytest.mark.filterwarnings("ignore")
def test_codecs_carry_weights_and_gradients_beneath_fully_shard(team: Teams) -> None:
    team(3).run(beneath_fsdp)


@pytest.mark.filterwarnings("ignore")
def test_sums_of_nodes_travel_in_a_codec_of_their_own(team: Teams) -> None:
    team(4).run(between_nodes)
