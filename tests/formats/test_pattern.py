"""Patterns of structured sparsity as data."""

from fractions import Fraction
from typing import Any

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
