"""Products of bfloat16 values against float64, in every corner of their panels."""

import numpy as np
import pytest
import torch

from fewbits import kernels
from fewbits.kernels import native, ops

pytestmark = pytest.mark.skipif(
    not native.has_bfloat16_products(), reason="the CPU has no products of bfloat16"
)

# Around the 6 rows, 64 columns and two steps of a panel; beyond the 192 rows, 256 columns and 1024 steps that
# are worked on together.
SHAPES = (
    *((m, 33, 65) for m in (1, 5, 6, 7, 12, 191, 193, 400)),
    *((13, 7, n) for n in (1, 16, 63, 64, 65, 255, 257, 520)),
    *((7, k, 70) for k in (1, 2, 3, 1023, 1024, 1025, 2049)),
)


def bfloat16(*shape: int, seed: int) -> np.ndarray:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.bfloat16().float().numpy()


def product(a: np.ndarray, b: np.ndarray, threads: int) -> np.ndarray:
    y = np.full((a.shape[0], b.shape[1]), np.nan, np.float32)
    native.bfloat16_product(a, b, y, threads=threads)
    return y


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_within_the_bound_and_do_not_depend_on_threads(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a, b = bfloat16(m, k, seed=1), bfloat16(k, n, seed=2)
    y = product(a, b, 1)
    bound = (k + 2) * 2.0**-24 * (np.abs(a).astype(float) @ np.abs(b).astype(float))
    assert (np.abs(y - a.astype(float) @ b.astype(float)) <= bound).all()
    for threads in (2, 3):
        assert np.array_equal(product(a, b, threads), y)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_small_integers_are_multiplied_exactly(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    draw = np.random.default_rng(3)
    a = draw.integers(-16, 17, (m, k)).astype(np.float32)
    b = draw.integers(-16, 17, (k, n)).astype(np.float32)
    assert np.array_equal(product(a, b, 2), a.astype(float) @ b.astype(float))


def test_nothing_to_add_is_zero_and_nothing_to_write_is_nothing() -> None:
    assert (product(bfloat16(7, 0, seed=1), bfloat16(0, 70, seed=1), 2) == 0).all()
    for m, k, n in ((0, 3, 4), (4, 3, 0)):
        assert product(bfloat16(m, k, seed=1), bfloat16(k, n, seed=1), 2).shape == (m, n)


def test_infinity_and_nan_come_through() -> None:
    a, b = np.ones((2, 3), np.float32), np.ones((3, 65), np.float32)
    a[0, 1], b[2, 64] = np.inf, np.nan
    y = product(a, b, 1)
    assert np.isposinf(y[0, :64]).all()
    assert np.isnan(y[:, 64]).all()
    assert (y[1, :64] == 3).all()


def test_values_that_are_no_bfloat16_are_not_seen_whole() -> None:
    a = np.full((6, 2), 1 + 2.0**-9, np.float32)  # the control: the check before the product is needed
    assert (product(a, np.ones((2, 64), np.float32), 1) == 2).all()


def test_the_operator_is_one_of_torch() -> None:
    a, b = (torch.from_numpy(bfloat16(*s, seed=4)).requires_grad_() for s in ((9, 10), (10, 11)))
    torch.library.opcheck(torch.ops.fewbits.bfloat16_product, (a, b))
    assert np.array_equal(
        kernels.bfloat16_product(a.detach().numpy(), b.detach().numpy()), ops.bfloat16_product(a, b).detach()
    )


def test_matrices_that_do_not_meet_are_refused() -> None:
    with pytest.raises(ValueError, match="as many rows as a has columns"):
        product(bfloat16(3, 4, seed=1), bfloat16(5, 6, seed=1), 1)
