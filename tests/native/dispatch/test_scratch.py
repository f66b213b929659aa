"""Memory that waits in the process for its next user."""

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fewbits.kernels import native

MEBIBYTE = 1 << 20
STATUS = Path("/proc/self/statm")


def place(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)


def resident() -> int:
    """Return the bytes of memory that this process has pages for."""
    return int(STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_what_is_gone_is_given_out_again_and_what_is_held_is_not() -> None:
    first = native.empty_kept((3 * MEBIBYTE,), np.float32)
    first[:] = 1
    where, part = place(first), first[5:7]
    second = native.empty_kept((3 * MEBIBYTE,), np.float32)
    second[:] = 2
    assert place(second) != where
    del first
    gc.collect()
    third = native.empty_kept((3 * MEBIBYTE,), np.float32)
    third[:] = 3
    assert place(third) != where  # a view keeps the memory
    assert part.tolist() == [1, 1]
    gone = {place(third)}
    del third
    gc.collect()
    # What earlier tests left may be given out first.
    again = [native.empty_kept((3 * MEBIBYTE,), np.float32) for _ in range(32)]
    assert gone < {place(array) for array in again}
    assert second[:2].tolist() == [2, 2]


def test_shapes_and_dtypes_are_as_asked_and_lines_of_the_cache_begin_the_array() -> None:
    for shape, dtype in (((0,), np.float32), ((3, 5), np.float64), ((7, 1, 2), np.int16)):
        array = native.empty_kept(shape, dtype)
        assert (array.shape, array.dtype) == (shape, dtype)
        assert place(array) % 64 == 0


@pytest.mark.peak_memory
@pytest.mark.skipif(not STATUS.exists(), reason="the system does not tell how much memory a process has")
def test_at_most_768_mebibytes_wait() -> None:
    held = [native.empty_kept((250 * MEBIBYTE,), np.uint8) for _ in range(4)]
    for array in held:
        array[:] = 1  # or the system gives no pages
    before = resident()
    del array
    held.clear()
    assert before - resident() > 200 * MEBIBYTE


@pytest.mark.peak_memory
def test_of_too_much_memory_what_waited_longest_leaves() -> None:
    earlier = native.empty_kept((300 * MEBIBYTE,), np.uint8)
    del earlier
    larger = native.empty_kept((500 * MEBIBYTE,), np.uint8)  # more than 768 with what waits
    larger[MEBIBYTE] = 7
    del larger
    again = native.empty_kept((500 * MEBIBYTE,), np.uint8)
    assert again[MEBIBYTE] == 7  # new memory holds zeros
