"""The largest magnitudes by operations of torch lie where the definition says, equal ones too."""

from typing import Any

import numpy as np
import pytest
import torch

from fewbits.kernels.portable.top_k.top_k import top_k
from fewbits.kernels.reference.top_k.top_k import top_k as defined
from tests.kernels.portable.compiling import BACKENDS, compiled, inductor_loads
from tests.native.top_k.test_top_k import ARRAYS

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def places(x: torch.Tensor, k: int) -> Any:
    """Return what the definition says of the bits of ``x``."""
    return defined(x.view(torch.int32 if x.element_size() == 4 else torch.int16).numpy(), k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ARRAYS)
def test_places_are_those_of_the_definition(name: str, dtype: torch.dtype) -> None:
    x = torch.from_numpy(ARRAYS[name][:20_003]).to(dtype)
    for k in (0, 1, 2000, 20_003):
        assert np.array_equal(top_k(x, k).numpy(), places(x, k)), k


@pytest.mark.parametrize("dtype", DTYPES)
def test_short_arrays_of_few_magnitudes_and_every_share_of_them(dtype: torch.dtype) -> None:
    for n in (0, 1, 2, 3, 7, 8, 33):
        x = torch.from_numpy(np.random.default_rng(n).integers(-2, 3, n)).to(dtype)
        for k in range(n + 1):
            assert np.array_equal(top_k(x, k).numpy(), places(x, k)), (n, k)


def test_every_half_is_ranked() -> None:
    x = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16)
    for k in (1, 2047, 4096, 60_000):
        assert np.array_equal(top_k(x, k).numpy(), places(x, k)), k


def test_topk_of_torch_takes_other_ones_among_equals() -> None:
    """The control: what this would be, were equal magnitudes left to torch."""
    x = torch.from_numpy(ARRAYS["few"])
    assert not np.array_equal(
        torch.topk(x.abs(), 50_000, sorted=False).indices.sort().values, places(x, 50_000)
    )


def test_shapes_are_known_without_values() -> None:
    assert top_k(torch.empty(8, device="meta"), 3).shape == (3,)


@inductor_loads
@pytest.mark.parametrize("backend", BACKENDS)
def test_it_compiles_whole_for_any_length(backend: str) -> None:
    largest = compiled(lambda x: top_k(x, 5), backend)
    for n in (40, 61):
        x = torch.from_numpy(ARRAYS["few"][:n])
        assert np.array_equal(largest(x).numpy(), places(x, 5))
