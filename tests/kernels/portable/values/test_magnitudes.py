"""Largest and smallest magnitudes by operations of torch are those of the compiled kernels, and NumPy's."""

import numpy as np
import pytest
import torch

from fewbits.kernels import native
from fewbits.kernels.ops.tensors import array
from fewbits.kernels.portable.values.magnitudes import largest_finite, smallest
from tests.native.inputs import awkward

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 33, 5000])
def test_magnitudes_are_those_of_the_compiled_kernels(n: int, dtype: torch.dtype) -> None:
    for seed in range(5):
        x = torch.from_numpy(np.random.default_rng(seed).permutation(awkward())[:n]).to(dtype)
        for given in (x, x.nan_to_num(0.0, 0.0, 0.0)):
            largest, is_finite = largest_finite(given)
            found = (float(largest), float(smallest(given)), not bool(is_finite))
            assert found == native.magnitudes(array(given), threads=1)


def test_an_empty_tensor_has_neither() -> None:
    none = torch.empty(0)
    assert [float(largest_finite(none)[0]), bool(largest_finite(none)[1])] == [0.0, True]
    assert float(smallest(none)) == np.inf


def test_what_is_not_finite_is_no_magnitude() -> None:
    """The control: a maximum of torch would be NaN here, and a minimum zero."""
    x = torch.tensor([0.0, -3.0, torch.nan, torch.inf, 2.0])
    assert [float(t) for t in (*largest_finite(x), smallest(x))] == [3.0, 0.0, 2.0]
    assert torch.isnan(x.abs().amax())
