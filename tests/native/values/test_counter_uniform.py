"""Initial values that can be had again: all instruction sets and thread numbers equal the definition."""

import numpy as np
import pytest

from fewbits.kernels import native
from fewbits.kernels.reference.values.counter_uniform import counter_uniform


@pytest.mark.parametrize(
    ("seed", "position", "n"),
    [(0, 0, 1), (1, 63, 200), (2**64 - 1, 5, 1025), (7, 2**34 - 3, 4100), (3, 1000, 0)],
)
def test_every_instruction_set_equals_the_definition(isa: str, seed: int, position: int, n: int) -> None:
    expected = counter_uniform(seed, position, n, 0.3)
    assert native.counter_uniform(seed, position, n, 0.3, 1).tobytes() == expected.tobytes()


def test_neither_threads_nor_the_first_position_change_a_value(isa: str) -> None:
    whole = native.counter_uniform(4, 0, 300_000, 2.0**-24, 1)
    assert native.counter_uniform(4, 0, 300_000, 2.0**-24, 2).tobytes() == whole.tobytes()
    assert native.counter_uniform(4, 12_345, 100, 2.0**-24, 1).tobytes() == whole[12_345:12_445].tobytes()
    assert native.counter_uniform(5, 0, 100, 2.0**-24, 1).tobytes() != whole[:100].tobytes()


def test_values_are_uniform_and_symmetric() -> None:
    x = native.counter_uniform(0, 0, 1 << 20, 2.0**-24, 2).astype(float)
    assert np.abs(x).max() < 1
    assert (x != 0).all()
    assert abs(x.mean()) < 5 / np.sqrt(3 << 20)
    assert abs((x**2).mean() - 1 / 3) < 5 * np.sqrt(4 / 45) / 1024
    counts = np.histogram(x, 64, (-1, 1))[0]
    assert ((counts - 2**14) ** 2).sum() / 2**14 < 120  # chi-square of 63 degrees: 1e-5 lies beyond


def test_positions_are_not_negative() -> None:
    with pytest.raises(ValueError, match="not negative"):
        native.counter_uniform(0, -1, 3, 1.0, 1)
