"""Block Hadamard rotations of tensors of any shape, and what they refuse."""

from typing import Any

import pytest
import torch

from fewbits.errors import ArgumentError, DTypeError
from fewbits.ptq import BlockHadamard


@pytest.mark.parametrize(("shape", "axis"), [((3, 32), -1), ((32, 5), 0), ((2, 48, 3), 1), ((16,), 0)])
def test_a_rotation_multiplies_each_block_by_signs_over_the_root_of_its_size(
    shape: tuple[int, ...], axis: int
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    # Sylvester's matrix: the sign of row i, column j is the parity of the bits that i and j share.
    signs = [[(-1.0) ** (i & j).bit_count() for j in range(16)] for i in range(16)]
    lines = x.movedim(axis, -1)
    wanted = torch.cat([part @ torch.tensor(signs).double() / 4 for part in lines.split(16, -1)], -1)
    found = BlockHadamard(16, axis).rotated(x)
    assert found.shape == x.shape
    torch.testing.assert_close(found, wanted.movedim(-1, axis))
    torch.testing.assert_close(BlockHadamard(16, axis).rotated(found), x)
    assert not torch.allclose(found, x)


@pytest.mark.parametrize("shape", [(0, 32), (2, 0, 32), (3, 0), (0,)])
def test_nothing_rotated_is_nothing_of_the_same_shape(shape: tuple[int, ...]) -> None:
    assert BlockHadamard(16).rotated(torch.zeros(shape)).shape == shape


def test_a_layer_with_a_rotation_takes_a_batch_of_none() -> None:
    layer = torch.nn.Linear(16, 4)
    layer.register_forward_pre_hook(BlockHadamard(16), with_kwargs=True)
    assert layer(torch.zeros(0, 16)).shape == (0, 4)


@pytest.mark.parametrize("size", [0, -16, 12, 16.0, "16", None])
def test_a_size_that_is_no_power_of_two_is_refused_at_once(size: Any) -> None:
    with pytest.raises(ArgumentError, match=r"BlockHadamard\(size=.*expected a power of two"):
        BlockHadamard(size)


def test_an_axis_that_blocks_do_not_fill_and_integers_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"blocks of 16 along axis -1 of shape \(3, 24\)"):
        BlockHadamard(16).rotated(torch.zeros(3, 24))
    with pytest.raises(DTypeError, match=r"a rotation of torch\.int64; expected floating point"):
        BlockHadamard(16).rotated(torch.ones(3, 16, dtype=torch.int64))
