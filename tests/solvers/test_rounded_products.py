"""Products of matrices rounded to the format of a factor: how ties are rounded, and what LU keeps."""

import numpy as np
import pytest
import torch

from fewbits.solvers.dense import lu, rounded_products
from fewbits.solvers.dense.rounded_products import rounded_product, rounded_update

TIES = {"tf32": 2.0**-11, "fp16": 2.0**-11}  # half of a unit in the last place of 1
ROUNDED = {"tf32": 1 + 2.0**-10, "fp16": 1.0}  # tensor cores take ties of TF32 away from zero


@pytest.mark.parametrize("factor", TIES)
def test_both_operands_are_rounded_as_the_hardware_rounds_the_format(factor: str) -> None:
    tie, identity = torch.full((1, 1), 1 + TIES[factor]), torch.ones(1, 1)
    multiply = rounded_product(factor)
    assert multiply(tie, identity).item() == ROUNDED[factor]
    assert multiply(identity, tie).item() == ROUNDED[factor]
    assert multiply(tie, tie).item() == ROUNDED[factor] ** 2


def _factored(steepness: float, precision: str) -> float:
    """The error of LU factors, of the largest, where entries of the inverse of the first triangle grow."""
    n, generator = 384, torch.Generator().manual_seed(0)
    lower, upper = (0.02 * torch.randn(n, n, generator=generator, dtype=torch.float64) for _ in range(2))
    lower = torch.eye(n, dtype=torch.float64) + lower.tril(-1)
    lower[:128, :128] = torch.eye(128) - steepness * torch.ones(128, 128).tril(-1)
    a = (lower @ (torch.eye(n) + upper.triu(1))).float()
    factors = a.clone()
    order = lu._permutation(lu._Recursion(factors, precision).run(), n)
    wide = factors.double()
    product = (wide.tril(-1) + torch.eye(n)) @ wide.triu()
    return float((product - a[order]).abs().max() / a.abs().max())


@pytest.mark.parametrize(("precision", "bound"), [("bf16", 2e-4), ("bf16x2", 4e-6), ("bf16x3", 1e-6)])
@pytest.mark.parametrize("steepness", [0.0, 0.1])
def test_triangles_by_products_lose_no_digits(steepness: float, precision: str, bound: float) -> None:
    assert _factored(steepness, precision) <= bound


def test_an_inverse_whose_entries_grow_would_lose_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lu, "_LARGEST", float("inf"))
    assert _factored(0.1, "bf16x3") > 1e-5


def test_two_terms_are_one_product_with_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(rounded_products.kernels, "has_tiles", lambda: True)
    monkeypatch.setattr(rounded_products.kernels, "has_bfloat16_products", lambda: True)
    monkeypatch.setattr(rounded_products, "subtract_bfloat16_product", lambda *args: given.append(args))
    a, b, c = (torch.randn(4, 4) for _ in range(3))
    rounded_update("bf16x2")(c, a, b)
    ((left, right, out, terms),) = given
    assert [x.ctypes.data for x in (left, right, out)] == [x.data_ptr() for x in (a, b, c)]
    assert terms == 2
    rounded_update("bf16x3")(c, a, b)
    assert given[1][0].shape == (4, 24)
    assert given[1][0].dtype == np.uint16
