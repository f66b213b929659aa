"""Operations on flat tensors: results are those of the kernels, and what they cannot read is refused."""

import numpy as np
import pytest
import torch

from fewbits.errors import ArgumentError, DTypeError
from fewbits.kernels import ops
from fewbits.kernels.reference.top_k.top_k import top_k


def normal(n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(n)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("n", "k"), [(0, 0), (1, 1), (5000, 0), (5000, 50), (5000, 5000)])
def test_top_k_gives_rising_indices_of_the_largest_magnitudes(dtype: torch.dtype, n: int, k: int) -> None:
    x = normal(n, dtype).requires_grad_()
    found = ops.top_k(x, k)
    assert (found.dtype, found.shape) == (torch.int64, (k,))
    assert np.array_equal(found.numpy(), top_k(x.detach().float().numpy(), k))


def test_top_k_refuses_what_it_cannot_count() -> None:
    for k in (-1, 9):
        with pytest.raises(ArgumentError, match=f"k={k} of 8 values; expected 0 to 8"):
            ops.top_k(torch.ones(8), k)


@pytest.mark.parametrize(
    "x",
    [
        torch.ones(4, 2),
        torch.ones(8)[::2],
        torch.ones(8, device="meta"),
        torch.tensor(1.0),
        torch.ones(8).to_sparse(),
    ],
    ids=["matrix", "strided", "meta", "scalar", "sparse"],
)
def test_what_is_not_flat_on_the_cpu_is_refused(x: torch.Tensor) -> None:
    with pytest.raises(ArgumentError, match=r"expected a flat one on the CPU.*x\.cpu\(\)\.flatten\(\)"):
        ops.top_k(x, 1)


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(DTypeError, match=r"torch\.float64; expected torch\.float32 or torch\.bfloat16"):
        ops.top_k(torch.ones(8).double(), 1)
