"""One reading of a tensor: what scales that many pieces share depend on."""

from typing import Any

import numpy as np
import pytest

from fewbits.files.survey import survey
from fewbits.formats import for_one_channel, parse
from fewbits.kernels.bits.reals import BFLOAT16, rounded_to_dtype

X = np.array([[1, -8, 2, 3], [-0.5, 0.25, 0, 0]], np.float32)


def test_a_row_that_is_cut_has_a_largest_value_of_its_own() -> None:
    seen = survey([X[:1, :2], X[:1, 2:], X[1:, :2], X[1:, 2:]], 4)
    assert (seen.largest, seen.largest_of_row) == (8, {0: 8, 1: 0.5})
    per_channel, per_tensor = parse("int8_channel"), parse("fp8_e4m3_tensor")
    assert seen.scale_of(per_channel, 1, True) == (for_one_channel(per_channel), 0.5)
    assert seen.scale_of(per_channel, 0, False) == (per_channel, 8)
    assert seen.scale_of(per_tensor, 1, True) == (per_tensor, 8)


def test_rows_that_are_whole_need_none() -> None:
    assert survey([X], 4).largest_of_row == {}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, BFLOAT16])
def test_what_is_not_finite_is_counted_and_left_out(dtype: Any) -> None:
    wide = X.copy()
    wide[0, :3] = np.nan, np.inf, -np.inf
    x = rounded_to_dtype(wide, dtype)
    seen = survey([x], 4)
    assert (seen.nans, seen.infinities, seen.largest) == (1, 2, 3)
