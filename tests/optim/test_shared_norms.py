"""Norms of layers that are computed by several processes: the bits of LARS that computes all itself."""

import copy
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from fewbits.errors import ArgumentError
from fewbits.kernels.ops.sharding import gathered
from fewbits.nn import prepare
from fewbits.optim import LARS
from fewbits.optim.shared_norms import dealt, shared_norms
from tests.distributed.team import Team
from tests.optim.test_sharded_states import cut

RECIPES = (
    "fp32",
    "fp16-no-scaling",
    "bf16-only",
    "fp32:parameter=fp16,has_master=true,master=mxfp8_e4m3/stochastic",
)
LAYERS = 5


def model(recipe: str) -> nn.Module:
    torch.manual_seed(0)
    sizes = (3, 40, 20, 64, 5, 7)
    return prepare(nn.Sequential(*(nn.Linear(n, m) for n, m in pairwise(sizes))), recipe)


def after_steps(recipe: str, group: Any, by: float = 1.0) -> list[torch.Tensor]:
    """Return the weights after some steps along gradients that ``by`` multiplies."""
    made = model(recipe)
    optimizer = LARS(made.parameters(), 0.1, weight_decay=0.01, recipe=recipe, group=group)
    random = torch.Generator().manual_seed(1)
    for step in range(3):
        for i, p in enumerate(made.parameters()):
            p.grad = None if (i, step) == (2, 1) else by * torch.randn(p.shape, generator=random).to(p.dtype)
        optimizer.step()
    return [p.detach() for p in made.parameters()]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def shares_and_equals(rank: int, size: int, recipe: str) -> None:
    alone = after_steps(recipe, None)
    calls, norm, gather = [0, 0], torch.linalg.vector_norm, distributed.all_gather

    def counted_norm(*given: Any) -> torch.Tensor:
        calls[0] += 1
        return norm(*given)

    def counted_gather(*given: Any, **more: Any) -> Any:
        calls[1] += 1
        return gather(*given, **more)

    with (
        patch("torch.linalg.vector_norm", counted_norm),
        patch("torch.distributed.all_gather", counted_gather),
    ):
        together = after_steps(recipe, distributed.group.WORLD)
    assert same(alone, together)
    assert same(alone, after_steps(recipe, init_device_mesh("cpu", (size,))))
    norms = torch.tensor([calls[0]])
    assert 0 < calls[0] < 2 * (3 * LAYERS - 1)
    distributed.all_reduce(norms)
    assert int(norms) == 2 * (3 * LAYERS - 1)  # nobody computes what another one does
    assert calls[1] == 3  # once in a step


def takes_those_of_others(rank: int, size: int) -> None:
    by = 1.0 + rank
    assert not same(after_steps("fp32", None, by), after_steps("fp32", distributed.group.WORLD, by))


def computes_alone_when_copied(rank: int, size: int) -> None:
    w = nn.Parameter(torch.ones(2, 3))
    copied = copy.deepcopy(LARS([w], 1.0, group=distributed.group.WORLD))
    if rank == 0:  # a collective would wait for the others
        for p in copied.param_groups[0]["params"]:
            p.grad = torch.ones(2, 3)
        copied.step()


def refuses_gradients_of_different_layers(rank: int, size: int) -> None:
    """As many on each process, and of equal sizes; or more on one."""
    for lacking in ([0, 1, 1], [0, None, None]):
        weights = [nn.Parameter(torch.ones(2, 3)) for _ in range(4)]
        for i, w in enumerate(weights):
            w.grad = None if i == lacking[rank] else torch.ones(2, 3)
        with pytest.raises(ArgumentError, match="ranks 0 and 1 of the group of LARS have gradients of diff"):
            LARS(weights, 1.0, group=distributed.group.WORLD).step()
        assert all(torch.equal(w, torch.ones(2, 3)) for w in weights)


def moves_a_sharded_layer_by_the_norms_of_the_whole(rank: int, size: int) -> None:
    """Rows are of very different lengths, and two processes have no row of the last layer."""

    def made() -> nn.Module:
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(8, 31), nn.ReLU(), nn.Linear(31, 1))
        with torch.no_grad():
            made[0].weight[:11] *= 10
        return made

    whole, parts = made(), made()
    before = [p.detach().clone() for p in whole.parameters()]
    fully_shard(parts)
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    for one in (whole, parts):
        optimizer = LARS(one.parameters(), 1.0, trust_coefficient=0.1, weight_decay=0.01)
        one(x).square().mean().backward()
        optimizer.step()
    for p, q, start in zip(whole.parameters(), parts.parameters(), before, strict=True):
        torch.testing.assert_close(gathered(q.detach()) - start, p.detach() - start, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def three() -> Iterator[Team]:
    team = Team(3)
    yield team
    team.end()


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_process_computes_its_share_and_the_bits_are_those_of_one(recipe: str, three: Team) -> None:
    three.run(partial(shares_and_equals, recipe=recipe))


def test_the_norms_are_really_those_of_the_others(three: Team) -> None:
    three.run(takes_those_of_others)


def test_a_copy_computes_alone(three: Team) -> None:
    three.run(computes_alone_when_copied)


def test_processes_with_gradients_of_different_layers_are_refused_on_each(three: Team) -> None:
    three.run(refuses_gradients_of_different_layers)


def test_a_layer_that_is_cut_into_shards_moves_as_it_does_whole(three: Team) -> None:
    three.run(moves_a_sharded_layer_by_the_norms_of_the_whole)


@pytest.mark.parametrize(
    ("sizes", "shares"),
    [
        ([], [[], []]),
        ([7], [[0], []]),
        ([1, 5, 3, 3], [[1, 0], [2, 3]]),
        ([2, 2, 2], [[0, 2], [1]]),
    ],
)
def test_layers_are_dealt_by_size(sizes: list[int], shares: list[list[int]]) -> None:
    assert dealt(sizes, 2) == shares


@pytest.mark.usefixtures("two")
def test_norms_travel_in_float32_whatever_the_default_dtype_is() -> None:
    def gather(rows: list[torch.Tensor], mine: torch.Tensor, group: Any) -> None:
        for row in rows:
            row.copy_(mine)

    torch.set_default_dtype(torch.bfloat16)
    try:
        with patch("torch.distributed.all_gather", gather):
            found = shared_norms([1], [True], lambda _: (257.0, 1.0), distributed.group.WORLD)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found == [(257.0, 1.0)]


@pytest.mark.usefixtures("two")
def test_sharded_parameters_and_processes_without_a_share_are_refused() -> None:
    w = nn.Parameter(cut(torch.ones(4, 4), 0))
    w.grad = cut(torch.ones(4, 4), 0)
    with pytest.raises(ArgumentError, match=r"sharded parameter of shape \(4, 4\).*leave group out"):
        LARS([w], 1.0, group=distributed.group.WORLD).step()
    with pytest.raises(ArgumentError, match="this process is not in the group of LARS"):
        shared_norms([1], [True], lambda _: (1.0, 1.0), distributed.new_group([1]))
