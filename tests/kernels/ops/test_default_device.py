"""Values stay where they lie, whatever device torch makes new tensors on."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits.kernels import force_backend


@pytest.fixture(autouse=True)
def _elsewhere() -> Iterator[None]:
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)
    force_backend(None)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "posit8_1"])
def test_an_array_is_packed_in_memory_of_the_cpu(name: str, dtype: type) -> None:
    x = np.arange(-40, 40, dtype=dtype).reshape(2, 40)
    for given in (x, x[:, ::2]):
        q = fb.quantize(given, name)
        assert q.codes.is_cpu
        np.testing.assert_array_equal(q.dequantize(), fb.fake_quantize(given, name))
    np.testing.assert_array_equal(fb.fake_quantize(np.float32([0.3, -7]), "fp4_e2m1"), np.float32([0.5, -6]))


def test_a_graph_knows_the_largest_number_of_a_dtype() -> None:
    force_backend("portable")
    x = torch.tensor([torch.inf, -3.0, 0.0], device="cpu")
    rounded = torch.compile(
        lambda x: fb.fake_quantize(x, "fp32", nonfinite="saturate"), fullgraph=True, backend="eager"
    )
    assert rounded(x).tolist() == [torch.finfo(torch.float32).max, -3.0, 0.0]
