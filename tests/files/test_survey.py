"""One reading of a tensor: what scales that many pieces share depend on."""

from typing import Any

import numpy as np
import pytest

from fewbits.files.survey import survey
from fewbits.formats import for_one_channel, parse

X = np.array([[1, -8, 2, 3], [-0.5, 0.25, 0, 0]], np.float32)


def test_a_row_that_is_cut_has_a_largest_value_of_its_own() -> None:
    seen = survey([X[:1, :2], X[:1, 2:], X[1:, :2], X[1:, 2:]], 4)
    assert (seen.largest, seen.largest_of_row) == (8, {0: 8, 1: 0.5})
    assert seen.power == np.square(X, dtype=np.float64).sum()
    per_channel, per_tensor = parse("int8_channel"), parse("fp8_e4m3_tensor")
    assert seen.scale_of(per_channel, 1, True) == (for_one_channel(per_channel), 0.5)
    assert seen.scale_of(per_channel, 0, False) == (per_channel, 8)
    assert seen.scale_of(per_tensor, 1, True) == (per_tensor, 8)


def test_rows_that_are_whole_need_none() -> None:
    assert survey([X], 4).largest_of_row == {}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_not_finite_is_counted_and_left_out(dtype: Any) -> None:
    x = X.astype(dtype)
    x[0, :3] = np.nan, np.inf, -np.inf
    seen = survey([x], 4)
    assert (seen.nans, seen.infinities, seen.largest) == (1, 2, 3)
    assert seen.power == 9 + 0.25 + 0.0625
