"""Schedules on several processes that train one model: the formats of one process, or a refusal."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

from fewbits.errors import ArgumentError
from fewbits.nn import prepare
from fewbits.recipes import recipe
from fewbits.train.schedules import Muppet, schedule
from tests.distributed.team import Team

STEPS = 60


@pytest.fixture(scope="module")
def two_processes() -> Iterator[Team]:
    team = Team(2)
    yield team
    team.end()


def muppet(*, sharded: bool) -> tuple[nn.Module, Muppet]:
    torch.manual_seed(0)
    model = prepare(nn.Sequential(nn.Linear(8, 31), nn.ReLU(), nn.Linear(31, 4)), "muppet")
    if sharded:
        fully_shard(model)
    found = schedule(model, "muppet", STEPS)
    assert isinstance(found, Muppet)
    return model, found


def switches_with_the_whole(rank: int, size: int) -> None:
    """Gradients grow alike, those of the first rows sooner: the processes would judge differently."""
    (whole, alone), (parts, together) = muppet(sharded=False), muppet(sharded=True)
    mesh, generator = init_device_mesh("cpu", (size,)), torch.Generator().manual_seed(1)
    levels = []
    for step in range(STEPS):
        for p, q in zip(whole.parameters(), parts.parameters(), strict=True):
            p.grad = torch.randn(p.shape, generator=generator)
            p.grad[: len(p) // 2] += step / 10
            q.grad = distribute_tensor(p.grad, mesh, q.placements, src_data_rank=None)
        for one in (alone, together):
            one.after_backward()
            one.after_step()
        assert (together.level, together.violations) == (alone.level, alone.violations), step
        assert together.largest == pytest.approx(alone.largest, rel=1e-5)
        levels.append(alone.level)
    assert levels[-1] >= 2


def test_muppet_switches_sharded_models_where_it_switches_whole_ones(two_processes: Team) -> None:
    two_processes.run(switches_with_the_whole)


@pytest.mark.usefixtures("two")
def test_assigned_is_refused_as_processes_would_promote_other_layers_and_leaves_the_model_alone() -> None:
    model = prepare(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), "assigned")
    with pytest.raises(ArgumentError, match="'assigned' on 2 processes: each would choose formats by"):
        schedule(model, "assigned", STEPS)
    for layer in model.children():
        precision: Any = layer.precision
        assert precision.observer is None
        assert precision.recipe == recipe("assigned")
