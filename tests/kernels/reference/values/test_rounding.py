"""Dropping bits of an integer, against Python's own whole numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbits.kernels.reference.values.rounding import drop_bits, split
from tests import cases


def by_hand(significand: int, shift: int, negative: bool, rounding: str, draw: int, bits: int) -> int:
    """Return significand / 2^shift rounded to an integer."""
    kept, dropped = divmod(significand, 2**shift)
    twice = 2 * dropped
    up = {
        "nearest_even": twice > 2**shift or (twice == 2**shift and kept % 2 == 1),
        "nearest_away": dropped > 0 and twice >= 2**shift,
        "toward_zero": False,
        "up": dropped > 0 and not negative,
        "down": dropped > 0 and negative,
        "stochastic": dropped * 2**bits // 2**shift + draw >= 2**bits,
    }[rounding]
    return kept + up


significands = (
    st.integers(0, 2**53 - 1)
    | st.integers(0, 52).map(lambda i: 2**i)
    | st.integers(1, 53).map(lambda i: 2**i - 1)
)


@pytest.mark.parametrize("rounding", cases.ROUNDINGS)
@given(
    significand=significands,
    shift=st.integers(0, 70) | st.just(4000),
    negative=st.booleans(),
    draw=st.integers(0, 2**32 - 1) | st.sampled_from((0, 2**31, 2**32 - 1)),
    bits=st.sampled_from((16, 32)),
)
def test_dropping_bits_equals_whole_number_division(
    rounding: str, significand: int, shift: int, negative: bool, draw: int, bits: int
) -> None:
    draw >>= 32 - bits
    found = drop_bits(
        np.array([significand], np.int64),
        np.array([shift], np.int64),
        np.array([negative]),
        rounding,
        np.array([draw], np.uint16 if bits == 16 else np.uint32),
    )
    assert found.tolist() == [by_hand(significand, shift, negative, rounding, draw, bits)]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_split_is_exact_for_every_float64(x: float) -> None:
    significand, exponent = split(np.array([x]))
    if x == 0:
        assert significand.tolist() == [0]
    else:
        assert 2**52 <= significand[0] < 2**53
        n, d = abs(x).as_integer_ratio()
        e = int(exponent[0])
        assert int(significand[0]) * 2 ** max(e, 0) * d == n * 2 ** max(-e, 0)
