"""What one process of several packs of a tensor that they share."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from fewbits.formats import parse
from fewbits.optim import AdamW
from fewbits.optim.packed_gradient import PackedGradient
from fewbits.optim.sharded import of_one, packable


def cut(whole: torch.Tensor, dim: int) -> DTensor:
    mine = whole.chunk(2, dim)[0] if whole.shape[dim] > 1 else whole
    mesh = init_device_mesh("cpu", (2,))
    return DTensor.from_local(
        mine, mesh, [Shard(dim)], run_check=False, shape=whole.shape, stride=whole.stride()
    )


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("fmt", "shape", "dim", "packed"),
    [
        ("mxfp8_e4m3", (4, 64), 0, (2, 64)),  # rows hold their blocks
        ("mxfp8_e4m3", (4, 64), 1, (4, 32)),  # cut between blocks
        ("mxfp8_e4m3", (4, 48), 1, (4, 48)),  # cut through one
        ("mxfp8_e4m3", (48,), 0, (48,)),
        ("mxfp8_e4m3", (64,), 0, (32,)),
        ("fp8_e4m3", (48,), 0, (24,)),  # each number alone
    ],
)
def test_the_whole_is_packed_only_where_a_block_would_be_cut(
    fmt: str, shape: tuple[int, ...], dim: int, packed: tuple[int, ...]
) -> None:
    mine, largest = packable(cut(torch.ones(shape), dim), parse(fmt))
    assert (mine.shape, largest) == (packed, None)
    assert not isinstance(mine, DTensor)


@pytest.mark.usefixtures("two")
def test_one_axis_that_cuts_a_block_is_enough() -> None:
    mesh = init_device_mesh("cpu", (2, 1))
    x = DTensor.from_local(torch.ones(2, 64), mesh, [Shard(0), Shard(1)], run_check=False)
    assert packable(x, parse("mxfp8_e4m3"))[0].shape == (4, 64)
    replicated = DTensor.from_local(torch.ones(4, 48), init_device_mesh("cpu", (2,)), [Replicate()])
    assert packable(replicated, parse("mxfp8_e4m3"))[0].shape == (4, 48)


@pytest.mark.usefixtures("two")
def test_a_scale_of_the_whole_takes_the_largest_of_all_parts_and_nothing_of_an_empty_one() -> None:
    x = cut(torch.tensor([[1.0, -7.0], [9.0, 2.0]]), 0)
    mine, largest = packable(x, parse("int8_tensor"))
    assert mine.shape == (1, 2)
    assert largest == 7.0  # the other process tells nothing here
    with_nan = cut(torch.tensor([[torch.nan, -3.0], [torch.inf, 2.0]]), 0)
    assert packable(with_nan, parse("int8_tensor"))[1] == 3.0
    mesh = init_device_mesh("cpu", (2,))
    nothing = DTensor.from_local(
        torch.empty(0, 2), mesh, [Shard(0)], run_check=False, shape=(1, 2), stride=(2, 1)
    )
    assert packable(nothing, parse("int8_tensor"))[1] == 0.0


@pytest.mark.usefixtures("two")
def test_what_was_packed_comes_back_sharded_as_the_parameter_is() -> None:
    like = cut(torch.zeros(4, 3), 0)
    for given in (torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(4, 3)):  # a part, the whole
        back = of_one(given, like)
        assert isinstance(back, DTensor)
        assert back.shape == (4, 3)
        assert torch.equal(back.to_local(), torch.arange(6.0).reshape(2, 3))


@pytest.mark.usefixtures("two")
def test_gradients_are_not_packed_before_the_processes_have_averaged_them() -> None:
    layer = nn.Linear(4, 4)
    optimizer = AdamW(layer.parameters(), recipe="fp32:held_gradient=mxfp8_e4m3")
    layer(torch.ones(1, 4)).sum().backward()
    assert not isinstance(layer.weight.grad, PackedGradient)
    optimizer.step()
    assert isinstance(layer.weight.grad, PackedGradient)
