"""The random bits of stochastic rounding against the known answers of Random123."""

import numpy as np
import pytest

from fewbits.kernels.reference.values.stochastic import draws
from fewbits.kernels.reference.values.threefry import threefry

# Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011); Random123, kat_vectors, threefry4x32
# with 13 rounds: counter, key, answer.
ONES = (0xFFFFFFFF,) * 4
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
MORE_PI = (0xA4093822, 0x299F31D0, 0x082EFA98, 0xEC4E6C89)
Words = tuple[int, int, int, int]
KNOWN: tuple[tuple[Words, Words, str], ...] = (
    ((0, 0, 0, 0), (0, 0, 0, 0), "531c7e4f 39491ee5 2c855a92 3d6abf9a"),
    (ONES, ONES, "c4189358 1c9cc83a d5881c67 6a0a89e0"),
    (PI, MORE_PI, "4aa71d8f 734738c2 431fc6a8 ae6debf1"),
)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_threefry_gives_the_known_answers(counter: Words, key: Words, answer: str) -> None:
    words = threefry(np.array([counter], np.uint32), key)
    assert [f"{int(w):08x}" for w in words[0]] == answer.split()


def test_a_draw_is_a_word_of_the_counter_that_its_position_names() -> None:
    positions = np.array([0, 1, 15, 16, 63, 64, 2**34 + 86, 2**40], np.int64)
    counters = [0, 1, 15, 0, 15, 16, 2**32 + 16 + 6, 2**38]
    words = [0, 0, 0, 1, 3, 0, 1, 0]
    parts = np.array([[c & 0xFFFFFFFF, c >> 32, 0, 0] for c in counters], np.uint32)
    expected = threefry(parts, (12345, 7, 0, 0))[np.arange(8), words]
    assert np.array_equal(draws(positions, 7 << 32 | 12345), expected)
    assert draws(np.empty((0, 3), np.int64), 1).shape == (0, 3)


def test_twelve_rounds_are_what_the_thirteenth_begins_with() -> None:
    counters = np.array([counter for counter, _, _ in KNOWN], np.uint32)
    key = KNOWN[2][1]
    x = threefry(counters, key, 12)
    # Round 13 mixes words 0 and 1 by a rotation of 6, words 2 and 3 by one of 20.
    for even, by in ((0, 6), (2, 20)):
        x[:, even] += x[:, even + 1]
        x[:, even + 1] = (x[:, even + 1] << np.uint32(by) | x[:, even + 1] >> np.uint32(32 - by)) ^ x[:, even]
    assert np.array_equal(x, threefry(counters, key))


def test_a_draw_of_16_bits_is_half_a_word_after_12_rounds() -> None:
    positions = np.array([0, 1, 15, 16, 63, 64, 127, 128, 2**35 + 186, 2**40], np.int64)
    counters = [0, 1, 15, 0, 15, 0, 15, 16, 2**32 + 16 + 10, 2**37]
    halves = [0, 0, 0, 1, 3, 4, 7, 0, 3, 0]
    parts = np.array([[c & 0xFFFFFFFF, c >> 32, 0, 0] for c in counters], np.uint32)
    words = np.ascontiguousarray(threefry(parts, (12345, 7, 0, 0), 12)).view("<u2")
    found = draws(positions, 7 << 32 | 12345, 16)
    assert found.dtype == np.uint16
    assert np.array_equal(found, words[np.arange(10), halves])


def test_draws_are_uniform_and_differ_between_seeds() -> None:
    one, other = draws(np.arange(100_000), 1), draws(np.arange(100_000), 2)
    counts = np.bincount(one >> 28, minlength=16)
    # Chi-squared with 15 degrees of freedom stays below 44 with probability 1 - 1e-4; the seed is fixed.
    assert np.sum((counts - 6250) ** 2 / 6250) < 44
    assert np.count_nonzero(one == other) < 5
    assert np.unique(one).size > 99_990
