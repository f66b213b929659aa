"""GPTQ and GPFQ choose the values that independent implementations of their papers choose."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from fewbits.formats import parse
from fewbits.ptq.gpfq import gpfq
from fewbits.ptq.gptq import _inverse_factor, gptq
from fewbits.ptq.grid import Grid, Target, grid
from tests.ptq import textbook

ROWS, N, SAMPLES = 12, 160, 300


def drawn(seed: int) -> tuple[Tensor, Tensor]:
    """Weights, and inputs that hang together, some of them large."""
    random = torch.Generator().manual_seed(seed)
    w = torch.randn(ROWS, N, generator=random, dtype=torch.float64)
    mixed = torch.randn(N, N, generator=random, dtype=torch.float64) / N**0.5
    size = torch.exp(torch.randn(N, generator=random, dtype=torch.float64))
    return w, torch.randn(SAMPLES, N, generator=random, dtype=torch.float64) @ mixed * size


def mxfp4(w: Tensor) -> Grid:
    return grid(w, Target(parse("mxfp4")))


@pytest.mark.parametrize("seed", range(3))
def test_gptq_chooses_what_the_paper_chooses(seed: int) -> None:
    w, x = drawn(seed)
    hessian = x.T @ x
    scales = textbook.mxfp4_scales(w.numpy())
    order = np.argsort(-hessian.diagonal().numpy(), kind="stable")
    expected = textbook.gptq(w.numpy(), 2 * hessian.numpy(), scales, 0.01, order)
    assert torch.equal(gptq(w, hessian, mxfp4(w).nearest, damping=0.01), torch.from_numpy(expected))


def test_gptq_in_another_order_chooses_otherwise() -> None:
    w, x = drawn(0)
    hessian = x.T @ x
    rising = np.argsort(hessian.diagonal().numpy(), kind="stable")
    other = textbook.gptq(w.numpy(), hessian.numpy(), textbook.mxfp4_scales(w.numpy()), 0.01, rising)
    assert not torch.equal(gptq(w, hessian, mxfp4(w).nearest), torch.from_numpy(other))


def test_a_hessian_whose_columns_are_in_another_order_loses_more() -> None:
    w, x = drawn(1)
    hessian = x.T @ x
    mixed = torch.randperm(N, generator=torch.Generator().manual_seed(0))

    def loss(chosen: Tensor) -> float:
        return float(((w - chosen) @ x.T).square().sum())

    own, wrong = (gptq(w, h, mxfp4(w).nearest) for h in (hessian, hessian[mixed][:, mixed]))
    assert loss(own) < 0.5 * loss(mxfp4(w).nearest(w)) < loss(wrong)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rounded", [False, True])
def test_gpfq_chooses_what_the_paper_chooses(seed: int, rounded: bool) -> None:
    w, x = drawn(seed)
    y = Target(parse("mxfp6_e2m3")).rounded(x) if rounded else x
    y[:, 7] = 0  # an input that never comes
    expected = textbook.gpfq(w.numpy(), x.numpy(), y.numpy(), textbook.mxfp4_scales(w.numpy()))
    assert torch.equal(gpfq(w, y.T @ y, y.T @ x, mxfp4(w).nearest), torch.from_numpy(expected))


def test_gpfq_with_the_moments_transposed_chooses_otherwise() -> None:
    w, x = drawn(0)
    y = Target(parse("mxfp4")).rounded(x)
    expected = textbook.gpfq(w.numpy(), x.numpy(), y.numpy(), textbook.mxfp4_scales(w.numpy()))
    assert not torch.equal(gpfq(w, y.T @ y, x.T @ y, mxfp4(w).nearest), torch.from_numpy(expected))


def test_without_any_input_gptq_rounds_to_nearest() -> None:
    w, _ = drawn(2)
    assert torch.equal(gptq(w, torch.zeros(N, N).double(), mxfp4(w).nearest), mxfp4(w).nearest(w))


class Live(TorchDispatchMode):
    """The most memory that tensors made inside of it held at once, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {x.untyped_storage()._cdata for x in args if isinstance(x, Tensor)}
        for x in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(x, Tensor) and x.untyped_storage()._cdata not in given:
                memory = x.untyped_storage()
                self._made[memory._cdata] = StorageWeakRef(memory), memory.nbytes()
        self.peak = max(self.peak, sum(size for ref, size in self._made.values() if not ref.expired()))
        return result


@pytest.mark.parametrize("samples", [2 * N, N // 2])
def test_the_factor_takes_the_room_of_two_hessians_and_has_the_bits_of_its_formula(samples: int) -> None:
    _, x = drawn(4)
    hessian = x[:samples].T @ x[:samples]
    order = torch.argsort(hessian.diagonal(), descending=True, stable=True)
    with Live() as live:
        factor = _inverse_factor(hessian, order, 0.01)
    assert live.peak < 2.2 * hessian.nbytes
    permuted = hessian[order][:, order]
    with Live() as plain:  # the control: the formula, whose parts are there at once
        damped = permuted + 0.01 * float(permuted.diagonal().mean()) * torch.eye(N, dtype=torch.float64)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
        expected = torch.linalg.cholesky(inverse, upper=True)
    assert torch.equal(factor.view(torch.int64), expected.view(torch.int64))
    assert plain.peak > 2.2 * hessian.nbytes


def test_fewer_inputs_than_columns_and_no_damping_still_give_values() -> None:
    w, x = drawn(2)
    few = x[:5]
    chosen = gptq(w, few.T @ few, mxfp4(w).nearest, damping=0)
    assert bool(torch.isfinite(chosen).all())
    dead = x.clone()
    dead[:, 3] = 0  # exactly: its row of the Hessian has no inverse
    assert bool(torch.isfinite(gptq(w, dead.T @ dead, mxfp4(w).nearest, damping=0)).all())
    assert ((w - chosen) @ few.T).norm() < ((w - mxfp4(w).nearest(w)) @ few.T).norm()
