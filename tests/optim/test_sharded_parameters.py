"""Narrow parameters that are sharded, their masters and compensations: the bits of one process."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from fewbits.kernels.ops.sharding import gathered
from fewbits.nn import prepare
from fewbits.optim import SGD
from tests.distributed.team import Team

RECIPES = (
    "fp16-master:scaling=none",
    "fp32:parameter=mxfp8_e4m3,has_master=yes",
    "fp32:parameter=int8_tensor,has_master=yes",
    "bf16-only-kahan",
    "fp32:parameter=mxfp8_e4m3,update=kahan",
)


@pytest.fixture(scope="module")
def two_processes() -> Iterator[Team]:
    team = Team(2)
    yield team
    team.end()


def takes_steps_and_what_is_written(rank: int, size: int, recipe: str) -> None:
    """The 40 values of the bias are cut within a block of 32, the 7 rows unevenly."""
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(prepare(nn.Sequential(nn.Linear(48, 7), nn.Linear(7, 40)), recipe))
    whole, parts = models
    fully_shard(parts)
    optimizers = [SGD(model.parameters(), 1e-3, momentum=0.9, recipe=recipe) for model in models]
    for step in range(6):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            torch.manual_seed(step)
            model(torch.randn(8, 48)).square().mean().backward()
            optimizer.step()
            if step == 3:
                with torch.no_grad():
                    for p in model.parameters():
                        p.mul_(0.5)
        for p, q in zip(whole.parameters(), parts.parameters(), strict=True):
            assert torch.equal(gathered(q.detach()), p.detach()), step


@pytest.mark.parametrize("recipe", RECIPES)
def test_steps_and_what_is_written_between_them_have_the_bits_of_one_process(
    recipe: str, two_processes: Team
) -> None:
    two_processes.run(partial(takes_steps_and_what_is_written, recipe=recipe))
