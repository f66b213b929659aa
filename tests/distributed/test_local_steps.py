"""Local SGD and DiLoCo: what travels less often."""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import fewbits as fb
from fewbits.distributed import LocalSteps
from tests.distributed.team import Team
from tests.distributed.test_collectives import same_everywhere

Teams = Callable[[int], Team]
STEPS = 48


def created(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 5))


def batches(rank: int, size: int, steps: int = STEPS) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    truth = torch.randn(20, 5, generator=generator)
    for _ in range(steps):
        x = torch.randn(60, 20, generator=generator)
        yield x.chunk(size)[rank], (x @ truth).argmax(1).chunk(size)[rank]


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1).float() for p in model.parameters()])


def trained(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rounds: list[tuple[torch.Tensor, torch.Tensor]],
    local: LocalSteps | None = None,
) -> float:
    loss = torch.zeros(())
    for x, y in rounds:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if local is not None:
            local.step()
    return float(loss.detach())


def averages_weights(rank: int, size: int) -> None:
    """The mean of weights after one step of SGD is one step with the mean of gradients."""
    model, alone = created(seed=rank), created()
    local = LocalSteps(model, steps=1)
    assert same_everywhere(weights(model))
    assert torch.equal(weights(model), weights(alone))  # those of rank 0
    rounds = list(batches(rank, size, 6))
    trained(model, torch.optim.SGD(model.parameters(), 0.1), rounds, local)
    trained(alone, torch.optim.SGD(alone.parameters(), 0.1), list(batches(0, 1, 6)))
    assert same_everywhere(weights(model))
    assert torch.allclose(weights(model), weights(alone), atol=1e-5)


def nesterov_by_hand(rank: int, size: int) -> None:
    """Two exchanges of DiLoCo, of weights that each process moves by its rank."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    local = LocalSteps(model, steps=2, lr=0.7, momentum=0.9)
    shared, velocity = 1.0, 0.0
    for _ in range(3):
        for step in range(2):
            with torch.no_grad():
                model.weight -= 0.25 * (rank + 1)
            assert local.step() is (step == 1)
        gradient = sum(0.5 * (r + 1) for r in range(size)) / size
        velocity = 0.9 * velocity + gradient
        shared -= 0.7 * (gradient + 0.9 * velocity)
        assert float(model.weight) == pytest.approx(shared, abs=1e-5)


def diloco(rank: int, size: int) -> None:
    losses = {}
    for codec in ("fp32", "int8_256:feedback", "mxfp4:feedback"):
        model = created()
        local = LocalSteps(model, steps=8, codec=codec, lr=0.7, momentum=0.9)
        before = weights(model)
        losses[codec] = trained(
            model, torch.optim.AdamW(model.parameters(), 1e-2), list(batches(rank, size)), local
        )
        assert same_everywhere(weights(model))
        assert not torch.equal(weights(model), before)
        assert local.traffic.sent["all_reduce"].calls == STEPS // 8 + 1
    assert abs(losses["int8_256:feedback"] - losses["fp32"]) < 0.05
    assert abs(losses["mxfp4:feedback"] - losses["fp32"]) < 0.15
    # Between two exchanges each process is on its own.
    trained(model, torch.optim.AdamW(model.parameters(), 1e-2), list(batches(rank, size, 3)), local)
    assert not same_everywhere(weights(model))


def resumes(rank: int, size: int) -> None:
    def fresh() -> tuple[nn.Module, torch.optim.Optimizer, LocalSteps]:
        model = created()
        local = LocalSteps(model, steps=4, codec="mxfp4/stochastic:feedback", lr=0.7, momentum=0.9)
        return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), local

    rounds = list(batches(rank, size))
    whole, optimizer, local = fresh()
    trained(whole, optimizer, rounds, local)
    first, one, local = fresh()
    trained(first, one, rounds[:22], local)  # two steps behind an exchange
    second, other, later = fresh()
    second.load_state_dict(first.state_dict())
    other.load_state_dict(one.state_dict())
    later.load_state_dict(local.state_dict())
    trained(second, other, rounds[22:], later)
    assert torch.equal(weights(second), weights(whole))
    # A state of before the first exchange has no momentum, whatever there was.
    third, again, back = fresh()
    states = [copy.deepcopy(part.state_dict()) for part in (third, again, back)]
    trained(third, again, rounds[:22], back)
    for part, state in zip((third, again, back), states, strict=True):
        part.load_state_dict(state)
    trained(third, again, rounds, back)
    assert torch.equal(weights(third), weights(whole))
    with pytest.raises(fb.ArgumentError, match=r"expected one of 0\.weight"):
        later.load_state_dict({**local.state_dict(), "shared": {"a": torch.ones(1)}})


def refuses(rank: int, size: int) -> None:
    for steps in (0, True, 2.5):
        with pytest.raises(fb.ArgumentError, match="integer from 1 up"):
            LocalSteps(created(), steps=steps)
    for value in (float("nan"), float("inf"), -1.0, True, "1"):
        for name in ("lr", "momentum"):
            with pytest.raises(fb.ArgumentError, match=f"{name}=.*; expected a finite number from 0 up"):
                LocalSteps(created(), steps=1, **{name: value})
    with pytest.raises(fb.ArgumentError, match="steps=0; expected an integer"):
        LocalSteps(created(), steps=[1, 0][rank])  # on one process, and none waits
    with pytest.raises(fb.ArgumentError, match="disagree"):
        LocalSteps(created(), steps=2 + rank)
    with pytest.raises(fb.ArgumentError, match=r"rank 1 has '.*lr=0\.5"):
        LocalSteps(created(), steps=2, lr=[0.7, 0.5][rank])
    with pytest.raises(fb.ArgumentError, match=r"rank 1 has '.*momentum=0\.8"):
        LocalSteps(created(), steps=2, momentum=[0.9, 0.8][rank])
    sharded = created()
    fully_shard(sharded, mesh=init_device_mesh("cpu", (size,)))
    with pytest.raises(fb.ArgumentError, match="whole weights"):
        LocalSteps(sharded, steps=2)
    with pytest.raises(fb.ArgumentError, match=r"0\.weight is float64, and weights are shared in float32"):
        LocalSteps(created().double(), steps=1)
    with pytest.raises(fb.ArgumentError, match="without parameters"):
        LocalSteps(nn.ReLU(), steps=1)


def keeps_its_own_state(rank: int, size: int) -> None:
    """A state of another model, or none, is refused before anything is taken from it."""
    local = LocalSteps(created(), steps=4, codec="int8_256:feedback", lr=0.7, momentum=0.9)
    local.exchange()
    whole = copy.deepcopy(local.state_dict())
    shared = whole["shared"]
    assert isinstance(shared, dict)
    ones = {name: torch.ones(1) for name in shared}  # of the same names, and shapes that could be broadcast
    wrong = [
        {**whole, "shared": ones}, {**whole, "shared": dict.fromkeys(shared, 3.0)},
        {**whole, "momentum": ones}, {**whole, "momentum": {"other": torch.ones(1)}},
        {**whole, "done": "4"}, {**whole, "codec": {}},
        {key: value for key, value in whole.items() if key != "momentum"}, {}, [], None,
    ]  # fmt: skip
    for state in wrong:
        with pytest.raises(fb.ArgumentError, match=r"the state of another model|is no state"):
            local.load_state_dict(state)
    assert str(local.state_dict()) == str(whole)
    local.load_state_dict(whole)


WORKS = [averages_weights, nesterov_by_hand, diloco, resumes, keeps_its_own_state, refuses]


@pytest.mark.parametrize("work", WORKS)
def test_processes_share_how_far_they_came(team: Teams, work: Callable[[int, int], None]) -> None:
    team(2).run(work)


def test_three_processes_average_their_weights(team: Teams) -> None:
    team(3).run(averages_weights)
