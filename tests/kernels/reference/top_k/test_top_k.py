"""The definition of the largest magnitudes, against sorting in exact arithmetic and by hand."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from fewbits.kernels.reference.top_k.top_k import top_k


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_numbers_rank_by_exact_magnitude_and_then_by_place(dtype: type) -> None:
    rng = np.random.default_rng(0)
    x = (rng.choice([0.0, -0.0, 2.0**-24, 1.0, -1.0, 3.0], 60) * rng.choice([1, 1, 1.5], 60)).astype(dtype)
    ranked = sorted(range(60), key=lambda i: (-abs(Fraction(float(x[i]))), i))
    for k in range(61):
        assert top_k(x, k).tolist() == sorted(ranked[:k])


def test_nan_is_above_infinity_by_its_payload_and_signs_do_not_count() -> None:
    bits = np.array([0x7F800000, 0xFFC00000, 0xFF800001, 0x7FC00001, 0x7F7FFFFF, 0xFF800000], np.uint32)
    x = bits.view(np.float32)
    assert [top_k(x, k).tolist() for k in range(1, 6)] == [
        [3],
        [1, 3],
        [1, 2, 3],
        [0, 1, 2, 3],
        [0, 1, 2, 3, 5],
    ]


def test_bfloat16_comes_as_its_bits() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(1)).bfloat16()
    bits = x.view(torch.int16).numpy().view(np.uint16)
    assert top_k(bits, 70).tolist() == top_k(x.float().numpy(), 70).tolist()


def test_values_without_equals_are_those_of_torch() -> None:
    x = torch.randperm(5000, generator=torch.Generator().manual_seed(2)).float() * -1
    assert top_k(x.numpy(), 123).tolist() == x.abs().topk(123).indices.sort().values.tolist()
