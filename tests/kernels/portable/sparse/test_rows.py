"""The product of compressed rows by operations of torch has the bits of the definition."""

import numpy as np
import pytest
import torch

from fewbits.kernels.portable.sparse.rows import RowProduct
from fewbits.kernels.reference.sparse.rows import multiply
from tests.kernels.portable.compiling import BACKENDS, compiled, inductor_loads
from tests.native.sparse.test_rows import held, matrices

MATRICES = matrices()


@pytest.mark.parametrize("storage", ["f32", "f16", "i16"])
@pytest.mark.parametrize("name", MATRICES)
def test_it_equals_the_definition(name: str, storage: str) -> None:
    a = MATRICES[name]
    rows = held(a, storage)
    x = np.random.default_rng(2).standard_normal(a.shape[1]).astype(np.float32)
    for given in (x, np.where(np.arange(x.size) % 7, x, np.float32(-0.0))):
        found = RowProduct(rows, "cpu")(torch.from_numpy(given))
        assert found.numpy().tobytes() == multiply(rows, given).tobytes()


def test_sums_in_another_order_have_other_bits() -> None:
    """The control: the product of torch's own sparse matrix."""
    a = MATRICES["uneven"]
    rows = held(a, "f32")
    x = np.random.default_rng(2).standard_normal(a.shape[1]).astype(np.float32)
    unit = np.random.default_rng(1).uniform(0.5, 2, a.shape[0]).astype(np.float32)
    wide = torch.from_numpy(a.toarray()).double() @ torch.from_numpy(x).double()
    other = (wide * torch.from_numpy(unit)).float().numpy()
    assert np.allclose(other, multiply(rows, x), rtol=1e-4, atol=1e-4)
    assert other.tobytes() != multiply(rows, x).tobytes()


@inductor_loads
@pytest.mark.parametrize("backend", BACKENDS)
def test_it_compiles_whole(backend: str) -> None:
    rows = held(MATRICES["diagonals"], "f16")
    x = np.random.default_rng(2).standard_normal(100).astype(np.float32)
    found = compiled(RowProduct(rows, "cpu"), backend, dynamic=False)(torch.from_numpy(x))
    assert found.numpy().tobytes() == multiply(rows, x).tobytes()
