from typing import Any

import pytest

from fewbits.files.matrix_view import matrix_shape


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), (1, 1)),
        ((5,), (1, 5)),
        ((4, 3), (4, 3)),
        ((2, 3, 32), (6, 32)),
        ((2, 3, 31), (2, 93)),
        ((8, 4, 3, 3), (8, 36)),
        ((8, 4, 1, 1), (8, 4)),
    ],
)
def test_a_row_is_what_a_matrix_product_sums_over(shape: Any, expected: Any) -> None:
    assert matrix_shape(shape) == expected
