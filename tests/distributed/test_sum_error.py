"""Sums of FP16 values over many processes: flat error of ours, where sums in FP16 lose with each process.

FP16 all-reduces as Svyatkovskiy et al. (2017) used them add in FP16: around a ring each sum is rounded once
for each process, up a tree once for each doubling.
"""

from itertools import pairwise

import numpy as np
import pytest
import torch

from fewbits.recipes import codec
from tests.distributed.definition import all_reduced

VALUES = 1024


def given(processes: int) -> list[np.ndarray]:
    """Return what the processes give, gradients that mostly agree, each a sum of FP16 values already."""
    random = np.random.default_rng(0)
    return [(1 + random.standard_normal(VALUES)).astype(np.float16) for _ in range(processes)]


def ring(xs: list[np.ndarray]) -> np.ndarray:
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total


def tree(xs: list[np.ndarray]) -> np.ndarray:
    while len(xs) > 1:
        xs = [a + b for a, b in zip(xs[::2], xs[1::2], strict=True)]
    return xs[0]


def ours(xs: list[np.ndarray]) -> np.ndarray:
    """Return the sum by the definition of the collectives, whose bits every rank has (test_collectives)."""
    total, _ = all_reduced([torch.from_numpy(x.astype(np.float32)) for x in xs], codec("fp16"), mean=False)
    return total


def error(how: object, processes: int) -> float:
    """Return the error of a sum, over the sum, in units of 2^-11: the root of the mean square."""
    xs = given(processes)
    exact = sum(x.astype(np.float64) for x in xs)
    assert callable(how)
    return float(np.sqrt(np.mean((how(xs) - exact) ** 2) / np.mean(exact**2))) * 2**11


@pytest.mark.parametrize("processes", [2, 8, 32])
def test_the_error_of_a_sum_does_not_grow_with_the_processes(processes: int) -> None:
    assert error(ours, processes) < 0.5  # one rounding, half a unit at most


def test_sums_in_fp16_lose_with_each_process_around_a_ring_and_with_each_doubling_up_a_tree() -> None:
    around, up = ([error(how, n) for n in (8, 32, 128)] for how in (ring, tree))
    assert all(later > 1.5 * before for before, later in pairwise(around))
    assert around[1] > 2 * error(ours, 32)
    assert error(ours, 32) < up[1] < around[1]
