"""Streams by operations of torch are the definition's, byte for byte, and what is damaged is seen."""

import numpy as np
import pytest
import torch

from fewbits.formats import pattern
from fewbits.kernels.bits.nm_stream import block_size, stream_bytes
from fewbits.kernels.bits.packing import pack
from fewbits.kernels.portable.nm.stream import compress, expand
from fewbits.kernels.reference.nm import stream as reference
from tests.kernels.portable.compiling import BACKENDS, compiled, inductor_loads
from tests.kernels.reference.nm.test_stream import BITS, PATTERNS, sparse


@pytest.mark.parametrize("text", PATTERNS)
@pytest.mark.parametrize("bits", BITS)
def test_streams_are_those_of_the_definition(text: str, bits: int) -> None:
    p = pattern(text)
    most = 2**bits - 1
    for groups in (0, 1, 3, 16, block_size(p) // p.group, 2 * block_size(p) // p.group + 5):
        codes = sparse(text, groups, bits)
        codes[codes == most] = 0
        n = codes.shape[1]
        # Other codes of zero, and of minus zero, than none and the highest bit.
        for zero, minus_zero in ((0, 0), (0, 1 << bits - 1), (most, most)):
            given = np.where(codes == 0, zero, codes)
            wanted = reference.compress(given, p, bits, zero, minus_zero)
            assert wanted is not None
            packed = torch.from_numpy(pack(given, bits))
            found, crowded = compress(packed, p, bits, n, zero, minus_zero)
            assert not crowded.any()
            assert np.array_equal(found.numpy(), wanted), (groups, zero, minus_zero)
            back, damaged = expand(found, p, bits, n, zero)
            assert not damaged.any()
            expected = reference.expand(wanted, p, bits, n, zero)
            assert expected is not None
            assert np.array_equal(back.numpy(), pack(expected, bits))


def test_minus_zero_is_kept_where_there_is_room() -> None:
    p = pattern("2:4")
    for codes in ([8, 0, 0, 3], [8, 8, 5, 8], [8, 5, 8, 6], [0, 8, 0, 8], [0, 0, 0, 0]):
        given = np.array([codes])
        found, _ = compress(torch.from_numpy(pack(given, 4)), p, 4, 4, 0, 8)
        assert np.array_equal(found.numpy(), reference.compress(given, p, 4, 0, 8))


@pytest.mark.parametrize(("text", "values"), [("1:2", 2), ("2:4", 3), ("2:3", 3)])
def test_every_group_of_few_values(text: str, values: int) -> None:
    """Each group that there is of the codes of zero, of minus zero, and of another value, in its own line."""
    p = pattern(text)
    groups = np.array(np.meshgrid(*[range(values)] * p.group)).reshape(p.group, -1).T
    minus_zero = 1 if values == 3 else 0
    found, crowded = compress(torch.from_numpy(pack(groups, 3)), p, 3, p.group, 0, minus_zero)
    for line, stream, refused in zip(groups, found.numpy(), crowded, strict=True):
        wanted = reference.compress(line[None], p, 3, 0, minus_zero)
        assert (wanted is None) == bool(refused)
        assert wanted is None or np.array_equal(stream, wanted[0])


def test_lines_with_too_many_values_and_with_damaged_masks_are_marked() -> None:
    p = pattern("2:4")
    codes = sparse("2:4", 300, 8)
    codes[1, 600:604] = 5
    assert compress(torch.from_numpy(pack(codes, 8)), p, 8, 1200, 0, 0)[1].tolist() == [False, True]
    found, _ = compress(torch.from_numpy(pack(sparse("2:4", 300, 8), 8)), p, 8, 1200, 0, 0)
    mask_bits = [8 * start + bit for start in (0, 64 + 256, 2 * 320) for bit in (0, 5, 8 * 22 - 1)]
    for bit in mask_bits:
        damaged = found.clone()
        damaged[1, bit // 8] ^= 1 << bit % 8
        assert expand(damaged, p, 8, 1200, 0)[1].tolist() == [False, True], bit
    expand(torch.full_like(found, 255), p, 8, 1200, 0)  # reads nothing outside


def test_shapes_are_known_without_values() -> None:
    p = pattern("2:4")
    stream, _ = compress(torch.empty(3, 300, dtype=torch.uint8, device="meta"), p, 4, 600, 0, 8)
    assert stream.shape == (3, stream_bytes(600, 4, p))
    assert expand(stream, p, 4, 600, 0)[0].shape == (3, 300)


@inductor_loads
@pytest.mark.parametrize("groups", [4, *(pytest.param(n, marks=pytest.mark.slow) for n in (15, 150))])
@pytest.mark.parametrize("backend", BACKENDS)
def test_it_compiles_whole_for_any_number_of_lines(backend: str, groups: int) -> None:
    p, n = pattern("2:4"), 4 * groups

    def there_and_back(codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        stream, _ = compress(codes, p, 4, n, 0, 8)
        return stream, expand(stream, p, 4, n, 0)[0]

    both = compiled(there_and_back, backend, dynamic=None)
    codes = torch.from_numpy(pack(np.concatenate([sparse("2:4", groups, 4, seed) for seed in range(3)]), 4))
    for lines in (3, 5):
        given = codes[:lines]
        torch._dynamo.mark_dynamic(given, 0)  # the length of a line is known, and a symbol for it costs most
        for found, wanted in zip(both(given), there_and_back(given), strict=True):
            assert torch.equal(found, wanted)
