"""Codes to bytes and back, for every width that a format can have."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbits.kernels.bits.packing import pack, unpack
from tests import cases


def by_hand(codes: list[int], bits: int) -> bytes:
    """Return the bit stream as one large number, the first code lowest."""
    number = sum(code << (i * bits) for i, code in enumerate(codes))
    return number.to_bytes(-(-len(codes) * bits // 8), "little")


@pytest.mark.parametrize("bits", range(1, 33))
def test_codes_of_every_width_and_count_come_back_from_a_little_endian_stream(bits: int) -> None:
    for count in cases.SIZES:
        codes = np.random.default_rng(bits).integers(0, 2**bits, count, dtype=np.uint64)
        packed = pack(codes, bits)
        assert packed.tobytes() == by_hand(codes.tolist(), bits)
        back = unpack(packed, bits, count)
        assert np.array_equal(back, codes)
        assert back.dtype == (np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32)


@given(st.integers(1, 32), st.data())
def test_every_line_is_a_stream_of_its_own_whatever_the_memory_order(bits: int, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple))
    codes = np.random.default_rng(0).integers(0, 2**bits, shape, dtype=np.uint64)
    packed = pack(np.asfortranarray(codes), bits)
    assert packed.shape == (*shape[:-1], -(-shape[-1] * bits // 8))
    for line in np.ndindex(shape[:-1]):
        assert packed[line].tobytes() == by_hand(codes[line].tolist(), bits)
    assert np.array_equal(unpack(packed, bits, shape[-1]), codes)


def test_the_spare_bits_of_the_last_byte_are_zero() -> None:
    assert pack(np.array([7, 7, 7]), 3).tolist() == [0xFF, 0x01]
