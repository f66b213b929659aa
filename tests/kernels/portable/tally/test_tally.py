"""Sums of errors by operations of torch have the bits of the definition."""

from typing import Any

import numpy as np
import pytest
import torch

from fewbits.kernels.bits.error_sums import LANES, MOST_TOGETHER
from fewbits.kernels.portable.tally.tally import tally
from fewbits.kernels.reference.tally.tally import tally as defined
from tests.kernels.portable.compiling import BACKENDS, compiled, inductor_loads
from tests.native.tally.test_tally import SHAPES

PARTS = (MOST_TOGETHER, 3 * LANES, 96, LANES)


def pair(shape: tuple[int, int], dtype: Any) -> tuple[Any, Any, Any]:
    """Return values, a few of them zero or not finite, what they were rounded to, and limits of some."""
    rng = np.random.default_rng(shape[1])
    x = (rng.standard_normal(shape) * np.exp2(rng.integers(-20, 20, shape))).astype(dtype)
    x[rng.random(shape) < 0.1] = 0
    x[rng.random(shape) < 0.02] = np.nan
    x[rng.random(shape) < 0.02] = np.inf
    with np.errstate(invalid="ignore"):
        y = np.where(rng.random(shape) < 0.1, 0, x * (1 + rng.uniform(-0.1, 0.1, shape))).astype(dtype)
    y[rng.random(shape) < 0.01] = np.nan
    return x, y, np.exp2(rng.integers(-20, 20, shape)).astype(np.float64)


def summed(x: Any, y: Any, limits: Any, part: int) -> tuple[float | int, ...]:
    """Return all that the definition has, the sums of parts added one after the other."""
    sums, largest, counts = tally(*map(torch.from_numpy, (x, y, limits)), part)
    totals = np.add.accumulate(sums.numpy(), axis=1)[:, -1] if x.size else np.zeros(3)
    return (*totals.tolist(), float(largest), *counts.tolist())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [*SHAPES, (0, 5), (5, 0), (17, 8)])
def test_every_sum_has_the_bits_of_the_definition(shape: tuple[int, int], dtype: Any) -> None:
    x, y, limits = pair(shape, dtype)
    for part in PARTS:
        assert repr(summed(x, y, limits, part)) == repr(tuple(defined(x, y, limits, part)))
    clean = np.nan_to_num(x, posinf=1), np.nan_to_num(y, posinf=1), np.array([[1.0]])
    assert summed(*clean, PARTS[0]) == tuple(defined(*clean, PARTS[0]))


def test_sums_in_another_order_have_other_bits() -> None:
    """The control: what torch adds in its own order, and parts of another length."""
    x, y, limits = (np.nan_to_num(part, posinf=1) for part in pair((300, 30), np.float32))
    wanted = defined(x, y, limits, 96)
    assert float((torch.from_numpy(x).double() ** 2).sum()) != wanted.signal
    assert summed(x, y, limits, LANES)[0] != wanted.signal


@inductor_loads
@pytest.mark.parametrize("backend", BACKENDS)
def test_it_compiles_whole(backend: str) -> None:
    given = [torch.from_numpy(np.nan_to_num(part, posinf=1)) for part in pair((7, 30), np.float32)]
    found = compiled(lambda x, y, limits: tally(x, y, limits, 96), backend, dynamic=False)(*given)
    for mine, theirs in zip(found, tally(*given, 96), strict=True):
        assert torch.equal(mine, theirs)
