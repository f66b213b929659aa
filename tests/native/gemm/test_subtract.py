"""Products of bfloat16 that are subtracted where they belong, in place, with values rounded on the way."""

import numpy as np
import pytest
import torch

from fewbits.kernels import native
from fewbits.kernels.arrays.products import subtract_bfloat16_product
from tests.native.gemm.test_product import laid_out, normal

SHAPES = ((1, 1, 1), (5, 33, 7), (40, 64, 70), (129, 257, 65), (400, 40, 1600), (800, 290, 1700), (3, 0, 5))
NARROW = [isa for isa in native.available_isas() if isa in ("amx", "avx512_bf16")]
needs_units = pytest.mark.skipif(not NARROW, reason="this CPU has no products of bfloat16")


def bfloat16(x: np.ndarray) -> np.ndarray:
    return torch.from_numpy(np.ascontiguousarray(x)).bfloat16().float().numpy()


def subtracted(a: np.ndarray, b: np.ndarray, terms: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return what stands before and after in the middle of a wider matrix, around which nothing changes."""
    wide = normal(len(a) + 2, b.shape[1] + 5, seed=3)
    before, middle = wide.copy(), (slice(1, 1 + len(a)), slice(2, 2 + b.shape[1]))
    subtract_bfloat16_product(a, b, wide[middle], terms)
    found, wide[middle] = wide[middle].copy(), before[middle]
    assert np.array_equal(wide, before)
    return before[middle], found


@needs_units
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("isa", NARROW)
def test_it_is_the_product_of_rounded_values(isa: str, shape: tuple[int, int, int]) -> None:
    native.force_isa(isa)
    m, k, n = shape
    a, b = normal(m, k, seed=1), normal(k, n, seed=2)
    left, right = bfloat16(a).astype(float), bfloat16(b).astype(float)
    for order in ("rows", "columns"):
        before, found = subtracted(laid_out(a, order), laid_out(b, order))
        bound = (k + 3) * 2.0**-24 * (np.abs(left) @ np.abs(right) + np.abs(before))
        assert (np.abs(found - (before - left @ right)) <= bound).all()
        halves = (torch.from_numpy(laid_out(x, order)).bfloat16().view(torch.uint16).numpy() for x in (a, b))
        assert np.array_equal(subtracted(*halves)[1], found)
    if k > 1:
        assert np.abs(found - (before - a.astype(float) @ b)).max() > 2.0**-12  # values were rounded


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_two_terms_leave_out_the_product_of_the_second_ones(shape: tuple[int, int, int]) -> None:
    if not native.has_tiles():
        pytest.skip("this CPU has no tiles")
    m, k, n = shape
    a, b = normal(m, k, seed=1), normal(k, n, seed=2)
    size = np.abs(a).astype(float) @ np.abs(b)
    for order in ("rows", "columns"):
        before, found = subtracted(laid_out(a, order), laid_out(b, order), 2)
        bound = ((3 * k + 3) * 2.0**-24 + 3 * 2.0**-18) * (size + np.abs(before))
        assert (np.abs(found - (before - a.astype(float) @ b)) <= bound).all()


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("matrices", [3, 20])
def test_rows_of_a_stack_may_lie_apart(rows: int, matrices: int) -> None:
    """A large stack is multiplied matrix by matrix, a small one at once."""
    a, b = normal(matrices, rows, 8, seed=1), normal(matrices, 8, 6, seed=2)
    wide = normal(matrices, rows, 11, seed=3)
    before = wide.copy()
    assert native.product(a, b, wide[:, :, 2:8], "float32", threads=2)
    assert np.allclose(wide[:, :, 2:8], a @ b, rtol=1e-5, atol=1e-5)
    assert np.array_equal(np.delete(wide, range(2, 8), 2), np.delete(before, range(2, 8), 2))


@needs_units
@pytest.mark.parametrize("isa", NARROW)
def test_infinities_and_nan_stay_and_what_is_subnormal_is_zero(isa: str) -> None:
    native.force_isa(isa)
    a, b = normal(40, 64, seed=1), normal(64, 40, seed=2)
    a[1, 3], a[2, 5], b[7, 9] = np.inf, np.nan, -np.inf
    _, found = subtracted(a, b)
    rows = np.isin(np.arange(40), (1, 2))
    assert not np.isfinite(found[rows]).any()
    assert not np.isfinite(found[:, 9]).any()
    assert np.isfinite(np.delete(found[~rows], 9, 1)).all()
    tiny, large = np.full((4, 64), 2.0**-130, np.float32), np.full((64, 4), 2.0**100, np.float32)
    before, found = subtracted(tiny, large)
    assert np.array_equal(found, before)


def _product(unit: str, y: np.ndarray, *, subtracts: bool = False) -> None:
    a, b = normal(len(y), y.shape[1], 4, seed=1), normal(len(y), 4, 4, seed=2)
    native.product(a, b, y, unit, threads=1, subtracts=subtracts)


def test_what_cannot_be_subtracted_is_refused() -> None:
    y = np.zeros((1, 4, 4), np.float32)
    apart, gaps = np.zeros((1, 4, 8), np.float32)[:, :, ::2], np.zeros((2, 5, 4), np.float32)[:, :4]
    with pytest.raises(ValueError, match="subtracted from float32"):
        _product("float32", y, subtracts=True)
    with pytest.raises(ValueError, match="a product of two terms is subtracted"):
        _product("bfloat16x2", y)
    with pytest.raises(ValueError, match="rows of y lie side by side"):
        _product("float32", apart)
    with pytest.raises(ValueError, match="rows of y lie in each other"):
        _product("float32", np.lib.stride_tricks.as_strided(y, (1, 3, 4), (64, 8, 4)))
    with pytest.raises(ValueError, match="matrices of y follow each other"):
        _product("float32", gaps)
    native.force_isa("baseline")
    with pytest.raises(ValueError, match="no such products of bfloat16"):
        _product("bfloat16", y, subtracts=True)
