"""Long arrays are cut into pieces that cover them once, in order."""

from itertools import product
from typing import Any

import pytest

from fewbits.files.pieces import pieces


@pytest.mark.parametrize(
    ("row", "most", "multiple"), list(product([1, 4, 7, 30], [3, 8, 30, 100], [1, 2, 5]))
)
def test_pieces_are_whole_rows_or_parts_of_one_at_a_multiple(row: Any, most: Any, multiple: Any) -> None:
    cut = list(pieces(3 * row, row, most=most, multiple=multiple))
    assert [at for start, size in cut for at in range(start, start + size)] == list(range(3 * row))
    for start, size in cut:
        if row <= most:
            assert start % row == 0
            assert size % row == 0
            assert size <= most
        else:
            assert start // row == (start + size - 1) // row
            assert (start % row) % multiple == 0
            assert size <= max(most, multiple)


def test_an_empty_array_has_none() -> None:
    assert list(pieces(0, 0, most=8)) == []
