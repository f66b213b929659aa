"""What a role's format does to a tensor before it is rounded."""

import pytest
import torch

from fewbits.recipes.rounding import power


@pytest.mark.parametrize(("shift", "expected"), [(0, 4.0), (1, 8.0), (-3, 0.5)])
def test_the_power_is_that_of_the_mean_logarithm_times_two_to_the_shift(shift: int, expected: float) -> None:
    x = torch.tensor([2.0, -8.0, 0.0])  # logarithms 1 and 3; a zero has none
    assert power(x, shift).item() == expected
