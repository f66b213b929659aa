"""The largest magnitudes: all instruction sets and thread numbers equal the definition."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fewbits.kernels import native
from fewbits.kernels.bits.reals import BFLOAT16, rounded_to_dtype
from fewbits.kernels.reference.top_k.top_k import top_k
from tests.native.inputs import awkward

Array = NDArray[Any]

# Candidates are sorted out at 4 k + 16 Ki values, a second thread takes part at 64 Ki.
LONG = 200_003


def arrays() -> dict[str, Array]:
    """Arrays of which different parts become candidates, with equal magnitudes around the last one."""
    rng = np.random.default_rng(0)
    normal = rng.standard_normal(LONG).astype(np.float32)
    rising = np.sort(np.abs(normal))
    with_nan = np.where(rng.random(LONG) < 0.01, np.float32(np.nan), normal)
    with np.errstate(over="ignore"):
        heavy = rng.standard_cauchy(LONG).astype(np.float32) ** 9
    return {
        "normal": normal,
        "sorted": np.sort(normal),
        "rising": rising * rng.choice(np.float32([-1, 1]), LONG),
        "falling": rising[::-1].copy(),
        "equal": np.ones(LONG, np.float32),
        "zeros": np.zeros(LONG, np.float32) * rng.choice(np.float32([-1, 1]), LONG),
        "nan": np.where(rng.random(LONG) < 0.5, -with_nan, with_nan),
        "heavy": heavy,
        "few": rng.integers(-3, 4, LONG).astype(np.float32),
        "steps": (np.arange(LONG) // 700).astype(np.float32),
        "awkward": np.resize(awkward(), LONG),
        "bits": rng.integers(0, 2**32, LONG, np.uint32).view(np.float32),
    }


ARRAYS = arrays()


def found(x: Array, k: int, threads: int) -> Array:
    places = np.full(k, -1, np.int64)
    native.top_k(x, places, threads=threads)
    return places


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16])
@pytest.mark.parametrize("name", ARRAYS)
def test_every_instruction_set_finds_the_places_of_the_definition(isa: str, name: str, dtype: Any) -> None:
    x = rounded_to_dtype(ARRAYS[name], dtype)
    for k in (1, 2000, 30_000):
        wanted = top_k(x, k)
        for threads in (1, 2, 3):
            assert np.array_equal(found(x, k, threads), wanted), (k, threads)


@pytest.mark.parametrize("n", [*(1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33), 1023, 1024, 1025, 2049, 17_408])
def test_short_arrays_and_every_share_of_them(isa: str, n: int) -> None:
    x = np.random.default_rng(n).integers(-4, 5, n).astype(np.float32)
    for k in {0, 1, n // 2, n - 1, n}:
        for values in (x, x.astype(np.float16), np.sort(np.abs(x))):
            assert np.array_equal(found(values, k, 2), top_k(values, k)), k


@pytest.mark.parametrize("k", [0, 1, 50_000, LONG - 1, LONG])
def test_a_large_share_of_several_parts(isa: str, k: int) -> None:
    for threads in (1, 2, 5):
        assert np.array_equal(found(ARRAYS["few"], k, threads), top_k(ARRAYS["few"], k))


def test_equal_magnitudes_that_are_left_over_are_the_last_ones(isa: str) -> None:
    x = np.zeros(LONG, np.float32)
    x[[5, 70_000, 70_001, 150_000, LONG - 1]] = [1, -2, 1, -1, 2]
    assert found(x, 3, 2).tolist() == [5, 70_000, LONG - 1]
    assert found(x, 4, 2).tolist() == [5, 70_000, 70_001, LONG - 1]
    assert found(x, 7, 2).tolist() == [0, 1, 5, 70_000, 70_001, 150_000, LONG - 1]


def test_parts_of_other_arrays_and_odd_addresses_can_be_read(isa: str) -> None:
    x = ARRAYS["normal"]
    assert np.array_equal(found(x[3:70_000], 500, 1), top_k(x[3:70_000], 500))
    assert np.array_equal(found(x[::3], 500, 1), top_k(x[::3].copy(), 500))
    raw = np.frombuffer(b"\0" + x[:1000].tobytes(), np.uint8)[1:].view(np.float32)
    assert np.array_equal(found(raw, 10, 1), top_k(x[:1000], 10))


def test_more_places_than_values_are_refused() -> None:
    with pytest.raises(ValueError, match="k of at most"):
        found(np.ones(4, np.float32), 5, 1)
