"""Packing by operations of torch gives the bytes of the definition, and takes them back, for every width."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fewbits.kernels.bits.packing import pack as defined
from fewbits.kernels.portable.values.packing import pack, unpack
from tests import cases
from tests.kernels.portable.compiling import BACKENDS, compiled, inductor_loads


def codes(shape: tuple[int, ...], bits: int) -> NDArray[np.int64]:
    """Return random codes of every width, the largest among them."""
    found = np.random.default_rng(bits).integers(0, 2**bits, shape)
    return np.where(np.random.default_rng(0).random(shape) < 0.2, 2**bits - 1, found)


@pytest.mark.parametrize("bits", range(1, 33))
def test_every_width_and_length_has_the_bytes_of_the_definition(bits: int) -> None:
    for shape in [(n,) for n in cases.SIZES] + [s for s in cases.SHAPES if s]:
        given = codes(shape, bits)
        packed = pack(torch.from_numpy(given), bits)
        assert np.array_equal(packed.numpy(), defined(given, bits)), shape
        assert np.array_equal(unpack(packed, bits, shape[-1]).numpy(), given), shape


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_every_byte_is_read_right(bits: int) -> None:
    """All contents of the bytes of a group of eight codes, or of two of its bytes."""
    octets = np.array(np.meshgrid(range(256), range(256))).reshape(2, -1).T.astype(np.uint8)
    n = 16 // bits
    found = unpack(torch.from_numpy(octets), bits, n).numpy()
    whole = octets.astype(np.int64) @ [1, 256]
    assert np.array_equal(found, np.stack([whole >> bits * i & (1 << bits) - 1 for i in range(n)], 1))


def test_shapes_are_known_without_values() -> None:
    packed = pack(torch.empty(3, 33, dtype=torch.int32, device="meta"), 5)
    assert packed.shape == (3, 21)
    assert unpack(packed, 5, 33).shape == (3, 33)


@inductor_loads
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bits", [3, pytest.param(16, marks=pytest.mark.slow)])
def test_packing_compiles_whole_for_any_length(bits: int, backend: str) -> None:
    there_and_back = compiled(lambda x: unpack(pack(x, bits), bits, x.shape[-1]), backend, dynamic=None)
    for n in (40, 61):
        given = torch.from_numpy(codes((4, n), bits))
        torch._dynamo.mark_dynamic(given, 1)  # a symbol for lines shows nothing
        assert torch.equal(there_and_back(given).long(), given)
