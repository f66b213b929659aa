"""What a role's format does to a tensor before it is rounded."""

import pytest
import torch

from fewbits.recipes.rounding import joint_seed, power


@pytest.mark.parametrize(("shift", "expected"), [(0, 4.0), (1, 8.0), (-3, 0.5)])
def test_the_power_is_that_of_the_mean_logarithm_times_two_to_the_shift(shift: int, expected: float) -> None:
    x = torch.tensor([2.0, -8.0, 0.0])  # logarithms 1 and 3; a zero has none
    assert power(x, shift).item() == expected


def test_seeds_of_several_parts_begin_other_draws() -> None:
    def draws(*parts: int) -> tuple[float, ...]:
        generator = torch.Generator().manual_seed(joint_seed(*parts))
        return tuple(torch.rand(4, generator=generator).tolist())

    parts = [(a, b) for a in range(40) for b in range(40)]
    assert len({draws(*pair) for pair in parts}) == len(parts)
    # What a seed has above 32 bits torch does not look at.
    same = [torch.rand(4, generator=torch.Generator().manual_seed((high << 32) + 7)) for high in (0, 1)]
    assert torch.equal(*same)
