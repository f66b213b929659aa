"""The order of numbers in ONNX and that of docs/layout.md, against arrays with a number for each item."""

from typing import Any

import numpy as np
import pytest

from fewbits.files.layouts.onnx_order import Order, stream
from fewbits.kernels.bits.packing import pack

SHAPES = [(1,), (7,), (3, 5), (4, 6), (1, 9), (2, 3, 5), (3, 4, 1), (2, 2, 8)]


@pytest.mark.parametrize("bits", [2, 4, 6, 8, 16, 32])
@pytest.mark.parametrize("shape", SHAPES)
def test_both_ways_are_those_of_plain_arrays_for_every_axis(shape: Any, bits: int) -> None:
    rng = np.random.default_rng([bits, *shape])
    items = rng.integers(0, 2**bits, shape, np.uint64)
    stored = pack(items.reshape(-1), bits).tobytes()  # row by row, without gaps
    for axis in range(len(shape)):
        order = Order(shape, axis, bits)
        lines = pack(np.moveaxis(items, axis, -1), bits).tobytes()  # every line begins with a byte
        assert order.nbytes == len(lines)
        assert order.from_onnx(stored) == lines
        assert order.to_onnx(lines) == stored
        assert order.is_same <= (lines == stored)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 31])
def test_a_stream_is_a_little_endian_string_of_bits(bits: int, count: int) -> None:
    codes = np.random.default_rng([bits, count]).integers(0, 2**bits, count).astype(np.uint8)
    number = sum(int(code) << bits * i for i, code in enumerate(codes))
    assert stream(codes, bits).tobytes() == number.to_bytes(-(-count * bits // 8), "little")
