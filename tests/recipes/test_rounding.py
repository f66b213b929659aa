"""What a role's format does to a tensor before it is rounded."""

import numpy as np
import pytest
import torch
from torch import nn

import fewbits as fb
from fewbits.nn import prepare
from fewbits.recipes.role_format import read_role_format
from fewbits.recipes.rounding import joint_seed, power, round_as


@pytest.mark.parametrize(("shift", "expected"), [(0, 4.0), (1, 8.0), (-3, 0.5)])
def test_the_power_is_that_of_the_mean_logarithm_times_two_to_the_shift(shift: int, expected: float) -> None:
    x = torch.tensor([2.0, -8.0, 0.0])  # logarithms 1 and 3; a zero has none
    assert power(x, shift).item() == expected


# Values whose quotients by the power, or the power itself, float16 cannot hold.
FAR_APART = ([2.0**-20] * 31 + [1.0], [9000.0, 30000.0] * 16, [2.0**-20] + [3000.0] * 31)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("values", FAR_APART)
def test_a_shifted_format_rounds_quotients_that_the_dtype_cannot_hold(
    values: list[float], dtype: torch.dtype
) -> None:
    """P(x / S) S of float64, with S = 2^(round(mean log2 |x|) + 2) (Lu et al., 2019, section 3)."""
    x, target = torch.tensor(values, dtype=dtype), read_role_format("posit8_1/shift=2")
    assert target is not None
    wide = x.double().numpy()
    power_of_two = 2.0 ** (np.rint(np.log2(wide).mean()) + 2)
    wanted = fb.fake_quantize(wide / power_of_two, "posit8_1") * power_of_two
    found = round_as(x, target)
    assert found.dtype == dtype
    assert torch.equal(found, torch.from_numpy(wanted).to(dtype))
    gradients = []
    for packs in (True, False):  # what waits for the backward pass is shifted likewise
        layer = prepare(
            nn.Linear(1, 1, bias=False),
            f"fp32:activation=posit8_1/shift=2,vector={VECTORS[dtype]}",
            pack_activations=packs,
        )
        layer(x.unsqueeze(1)).backward(torch.full((32, 1), 2.0**-6))
        gradients.append(layer.weight.grad.item())
    assert gradients[0] == gradients[1]
    assert gradients[0] == pytest.approx(wanted.sum() / 64, rel=2**-8)


VECTORS = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_power_of_values_near_the_largest_is_finite(dtype: torch.dtype) -> None:
    x, target = torch.full((4,), 2.0**127, dtype=dtype), read_role_format("posit8_1/shift=2")
    assert target is not None
    assert torch.equal(round_as(x, target), x)


def test_seeds_of_several_parts_begin_other_draws() -> None:
    def draws(*parts: int) -> tuple[float, ...]:
        generator = torch.Generator().manual_seed(joint_seed(*parts))
        return tuple(torch.rand(4, generator=generator).tolist())

    parts = [(a, b) for a in range(40) for b in range(40)]
    assert len({draws(*pair) for pair in parts}) == len(parts)
    # What a seed has above 32 bits torch does not look at.
    same = [torch.rand(4, generator=torch.Generator().manual_seed((high << 32) + 7)) for high in (0, 1)]
    assert torch.equal(*same)
