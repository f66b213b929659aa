import pytest

from fewbits.files.lines import lines


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
def test_a_line_is_what_a_matrix_product_sums_over(shape, expected):
    assert lines(shape) == expected
