"""Patterns of structured sparsity as data."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from fewbits.errors import FormatError
from fewbits.formats import Pattern, pattern


@pytest.mark.parametrize(("text", "keep", "group"), [("2:4", 2, 4), ("1:2", 1, 2), (" 4 : 8 ", 4, 8)])
def test_a_pattern_is_what_it_prints(text: str, keep: Any, group: Any) -> None:
    one = pattern(text)
    assert one == Pattern(keep, group) == pattern(str(one)) == pattern(one)
    assert one.density == Fraction(keep, group)


@pytest.mark.parametrize("text", ["", "2", "2/4", "4:4", "0:4", "5:4", "1:65", "2:4:8", "-1:4", "2:"])
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match=r"N:M|N of M"):
        pattern(text)


@pytest.mark.parametrize("given", [(1.5, 4), ("2", "4"), (True, 4), (2, None), (4, 2)])
def test_a_pattern_is_of_two_integers(given: Any) -> None:
    with pytest.raises(FormatError, match="keeps N of M, integers with 1 <= N < M <= 64, got"):
        Pattern(*given)


def test_integers_of_numpy_make_the_same_pattern() -> None:
    one = Pattern(np.int64(2), np.uint8(4))
    assert one == Pattern(2, 4)
    assert (type(one.keep), type(one.group), str(one)) == (int, int, "2:4")
