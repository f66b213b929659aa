"""The definition of the stream against a reading of docs/sparse_storage.md, bit by bit."""

import numpy as np
import pytest

from fewbits.formats import pattern
from fewbits.kernels.bits.nm_stream import block_size, stream_bytes
from fewbits.kernels.reference.nm.stream import compress, expand, kept

PATTERNS = ("1:2", "2:4", "4:8", "1:4", "3:4", "2:5", "7:9", "16:64", "63:64")
BITS = (1, 2, 3, 4, 6, 8, 11, 16, 19, 32)


def sparse(pattern_text: str, groups: int, bits: int, seed: int = 0) -> np.ndarray:
    """Return codes of which at most N of M are not zero, sometimes fewer."""
    p, draw = pattern(pattern_text), np.random.default_rng(seed)
    codes = draw.integers(0, 2**bits, (2, groups, p.group), dtype=np.uint64)
    order = draw.random(codes.shape).argsort(-1)
    return np.where(order < p.keep, codes, 0).reshape(2, -1)


def read(stream: np.ndarray, text: str, bits: int, n: int) -> list[int]:
    """Return the codes of one stream, by single bits."""
    p = pattern(text)
    everything = [int(byte) >> i & 1 for byte in stream for i in range(8)]
    found: list[int] = []
    at = 0
    for start in range(0, n, block_size(p)):
        size = min(block_size(p), n - start)
        groups = size // p.group
        mask, at = everything[at : at + size], at + -(-size // 8) * 8
        values = everything[at : at + groups * p.keep * bits]
        at += -(-groups * p.keep * bits // 8) * 8
        taken = 0
        for i in range(size):
            if mask[i % p.group * groups + i // p.group]:
                found.append(sum(values[taken * bits + b] << b for b in range(bits)))
                taken += 1
            else:
                found.append(0)
        assert taken == groups * p.keep
    assert at == 8 * len(stream)
    return found


@pytest.mark.parametrize("text", PATTERNS)
@pytest.mark.parametrize("bits", BITS)
def test_a_stream_holds_the_codes_where_the_page_says(text: str, bits: int) -> None:
    p = pattern(text)
    for groups in (0, 1, 3, 16, block_size(p) // p.group + 5):
        codes = sparse(text, groups, bits)
        stream = compress(codes, p, bits, 0, 0)
        assert stream is not None
        assert stream.shape == (2, stream_bytes(groups * p.group, bits, p))
        assert [read(line, text, bits, codes.shape[1]) for line in stream] == codes.tolist()
        back = expand(stream, p, bits, codes.shape[1], 0)
        assert back is not None
        assert np.array_equal(back, codes)


def test_bytes_for_each_value_are_those_published() -> None:
    bits = {
        name: 8 * stream_bytes(4096, width, pattern("2:4")) / 4096
        for name, width in (("mxfp4", 4), ("mxfp8", 8))
    }
    assert {name: width + 8 / 32 for name, width in bits.items()} == {"mxfp4": 3.25, "mxfp8": 5.25}
    assert stream_bytes(4096, 16, pattern("2:4")) == 9 / 16 * 2 * 4096


def test_minus_zero_is_kept_where_there_is_room_and_becomes_zero_elsewhere() -> None:
    p = pattern("2:4")
    for codes, wanted in (
        ([8, 0, 0, 3], [8, 0, 0, 3]),
        ([8, 8, 5, 8], [8, 0, 5, 0]),
        ([8, 5, 8, 6], [0, 5, 0, 6]),
    ):
        stream = compress(np.array([codes]), p, 4, 0, 8)
        assert stream is not None
        back = expand(stream, p, 4, 4, 0)
        assert back is not None
        assert back.tolist() == [wanted]


def test_a_code_of_zero_that_is_not_zero_comes_back() -> None:
    codes = np.array([[7, 7, 7, 0], [1, 7, 7, 7]])
    stream = compress(codes, pattern("2:4"), 4, 7, 7)
    assert stream is not None
    back = expand(stream, pattern("2:4"), 4, 4, 7)
    assert back is not None
    assert np.array_equal(back, codes)


def test_too_many_values_and_a_mask_that_keeps_another_number_are_seen() -> None:
    p = pattern("2:4")
    assert kept(np.array([[1, 2, 3, 0]]), p, 0, 0) is None
    assert compress(np.array([[1, 2, 3, 0]]), p, 8, 0, 0) is None
    stream = compress(sparse("2:4", 128, 8), p, 8, 0, 0)
    assert stream is not None
    for bit in range(512):
        stream[0, bit // 8] ^= 1 << bit % 8
        assert expand(stream, p, 8, 512, 0) is None
        stream[0, bit // 8] ^= 1 << bit % 8
    assert expand(stream, p, 8, 512, 0) is not None
