"""Prepared models compile without a break through plain operations of torch, and give the bits of the CPU."""

from collections.abc import Iterator

import pytest
import torch

import fewbits as fb
from fewbits.kernels import force_backend


@pytest.fixture(autouse=True)
def _portable() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    force_backend(None)
    torch._dynamo.reset()


def model() -> torch.nn.Module:
    """Return two products with a nonlinearity between them."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 32))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile does it
@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp6_e3m2", "nvfp4", "mx9", "int8_channel"])
def test_the_forward_of_a_prepared_model_has_the_bits_of_the_cpu(name: str) -> None:
    prepared = fb.prepare(model(), f"mx:weight={name},activation={name},gradient={name}")
    x = torch.randn(8, 64)
    wanted = prepared(x)
    force_backend("portable")
    assert torch.equal(prepared(x), wanted)
    found = torch.compile(prepared, fullgraph=True, backend="aot_eager")(x)
    assert torch.equal(found, wanted)
