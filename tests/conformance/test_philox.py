"""The random bits of stochastic rounding against the known answers of Random123."""

import numpy as np
import pytest

from fewbits.kernels.reference.philox import draws, philox

# Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011); Random123, kat_vectors, philox4x32 7
# rounds.
KNOWN = (
    (0, 0, "5f6fb709 0d893f64 4f121f81 4f730a48"),
    (0xFFFFFFFF, 0xFFFFFFFF, "5207ddc2 45165e59 4d8ee751 8c52f662"),
)
PI = (
    (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
    (0xA4093822, 0x299F31D0),
    "4dfccaba 190a87f0 c47362ba b6b5242a",
)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_philox_gives_the_known_answers(counter: int, key: int, answer: str) -> None:
    words = philox(np.full((1, 4), counter, np.uint64), key << 32 | key)
    assert [f"{int(w):08x}" for w in words[0]] == answer.split()


def test_philox_gives_the_known_answer_for_the_digits_of_pi() -> None:
    counter, key, answer = PI
    words = philox(np.array([counter], np.uint64), key[1] << 32 | key[0])
    assert [f"{int(w):08x}" for w in words[0]] == answer.split()


def test_a_draw_is_a_word_of_the_counter_that_its_position_names() -> None:
    positions = np.array([0, 1, 2, 3, 4, 7, 2**34 + 6, 2**40], np.int64)
    counters = [[p // 4 & 0xFFFFFFFF, p // 4 >> 32, 0, 0] for p in positions.tolist()]
    expected = philox(np.array(counters, np.uint64), 12345)[np.arange(8), positions % 4]
    assert np.array_equal(draws(positions, 12345), expected)
    assert draws(np.empty((0, 3), np.int64), 1).shape == (0, 3)


def test_draws_are_uniform_and_differ_between_seeds() -> None:
    one, other = draws(np.arange(100_000), 1), draws(np.arange(100_000), 2)
    counts = np.bincount(one >> 28, minlength=16)
    # Chi-squared with 15 degrees of freedom stays below 44 with probability 1 - 1e-4; the seed is fixed.
    assert np.sum((counts - 6250) ** 2 / 6250) < 44
    assert np.count_nonzero(one == other) < 5
