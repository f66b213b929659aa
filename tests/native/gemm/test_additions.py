"""Products by sums of bit patterns: the compiled kernel against the definition, that against exact ones."""

import numpy as np
import pytest
import torch

from fewbits.kernels import native
from fewbits.kernels.reference.gemm.additions import product, times

VALUES = np.array(
    [
        np.nan,
        np.inf,
        -np.inf,
        0.0,
        -0.0,
        1.0,
        -1.0,
        1.5,
        3.0,
        1e-45,
        1.1754944e-38,
        -(2.0**-126),
        1e-20,
        3e38,
        -3e38,
        2.0**127,
        0.1,
        7.0,
    ],
    np.float32,
)


def test_a_product_is_exact_for_powers_of_two_and_within_a_ninth_else() -> None:
    x = np.random.default_rng(0).standard_normal((1000, 1)).astype(np.float32)
    found, exact = times(x, x.T).astype(np.float64), x.astype(np.float64) * x.T
    error = found / exact - 1
    assert error.max() <= 0
    assert error.min() >= -1 / 9
    assert error.mean() == pytest.approx(-0.0385, abs=0.002)  # Mitchell's mean
    powers = np.exp2(np.arange(-60, 60, dtype=np.float32))
    assert np.array_equal(times(powers[:, None], x.T[:, :5]), powers[:, None] * x.T[:, :5])


def test_zeros_and_what_leaves_the_range() -> None:
    one = np.float32(1)
    assert times(VALUES[3:], np.zeros_like(VALUES[3:])).tolist() == [0.0] * len(VALUES[3:])
    assert times(np.array([1e-30], np.float32), np.array([1e-30], np.float32)).tolist() == [0.0]
    top = np.finfo(np.float32).max
    assert times(np.array([3e38, -3e38], np.float32), np.array([3e38], np.float32)).tolist() == [top, -top]
    assert times(np.array([one]), np.array([-one])).tolist() == [-1.0]


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (9, 64, 600), (4, 0, 3), (5, 1, 1030)])
def test_the_kernel_is_the_definition(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    generator = np.random.default_rng(1)
    a = generator.standard_normal((m, k)).astype(np.float32)
    b = generator.choice(VALUES, (k, n)).astype(np.float32)
    expected = product(a, b)
    for isa in native.available_isas():
        native.force_isa(isa)
        for threads in (1, 2):
            y = np.full((m, n), np.nan, np.float32)
            native.addition_product(a, b, y, threads=threads)
            same = (y.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(y) & np.isnan(expected))
            assert same.all(), isa


def test_torch_sees_an_operator() -> None:
    torch.library.opcheck(torch.ops.fewbits.addition_product, (torch.randn(3, 4), torch.randn(4, 5)))
