"""Packing by words gives the bytes of packing by bits, for every width of an index."""

import numpy as np
import pytest

from fewbits.kernels.bits.packing import pack, unpack
from fewbits.kernels.bits.words import pack_words, unpack_words
from tests import cases


@pytest.mark.parametrize("bits", range(1, 33))
def test_codes_of_every_width_and_count_are_packed_as_by_bits_and_come_back(bits: int) -> None:
    for count in (*cases.SIZES, 1000):
        codes = np.random.default_rng(bits).integers(0, 2**bits, count)
        codes[:1] = 2**bits - 1  # all bits of the first word
        packed = pack_words(codes, bits)
        assert np.array_equal(packed, pack(codes, bits))
        back = unpack_words(packed, bits, count)
        assert back.dtype == np.int64
        assert np.array_equal(back, codes)
        assert np.array_equal(back, unpack(packed, bits, count))
