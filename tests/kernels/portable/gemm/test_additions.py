"""Products by sums of bit patterns, by operations of torch, have the bits of the definition."""

import numpy as np
import pytest
import torch

from fewbits.kernels.portable.gemm import additions
from fewbits.kernels.reference.gemm.additions import product, times
from tests.kernels.portable.compiling import BACKENDS, compiled, inductor_loads
from tests.native.gemm.test_additions import VALUES
from tests.native.inputs import awkward


def same(found: torch.Tensor, wanted: np.ndarray) -> bool:
    mine = found.numpy()
    return bool(
        ((mine.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(mine) & np.isnan(wanted))).all()
    )


def test_each_product_is_that_of_the_definition() -> None:
    a = np.concatenate([VALUES, np.random.default_rng(0).permutation(awkward())[:1500]])
    b = np.concatenate([VALUES, np.random.default_rng(1).permutation(awkward())[:1500]])
    found = additions.times(torch.from_numpy(a)[:, None], torch.from_numpy(b))
    assert same(found, times(a[:, None], b))
    assert not same(torch.from_numpy(a)[:, None] * torch.from_numpy(b), times(a[:, None], b))  # the control


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (9, 64, 600), (4, 0, 3), (5, 1, 1030), (0, 3, 4)])
def test_a_product_is_that_of_the_definition(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    m, k, n = shape
    generator = np.random.default_rng(1)
    a = generator.standard_normal((m, k)).astype(np.float32)
    for b in (generator.choice(VALUES, (k, n)), generator.standard_normal((k, n)).astype(np.float32)):
        for together in (1 << 22, 1 << 14):
            monkeypatch.setattr(additions, "_AT_ONCE", together)
            assert same(additions.product(torch.from_numpy(a), torch.from_numpy(b)), product(a, b))


def test_the_order_of_the_sums_is_that_of_k() -> None:
    """The control: sums in another order have other bits."""
    generator = np.random.default_rng(1)
    a, b = (generator.standard_normal(s).astype(np.float32) for s in ((9, 64), (64, 60)))
    reverse = additions.product(torch.from_numpy(a).flip(1), torch.from_numpy(b).flip(0))
    assert not same(reverse, product(a, b))


@inductor_loads
@pytest.mark.parametrize("backend", BACKENDS)
def test_it_compiles_whole(backend: str) -> None:
    generator = np.random.default_rng(2)
    a, b = (generator.standard_normal(s).astype(np.float32) for s in ((5, 6), (6, 33)))
    found = compiled(additions.product, backend, dynamic=False)(torch.from_numpy(a), torch.from_numpy(b))
    assert same(found, product(a, b))
