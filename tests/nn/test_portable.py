"""Prepared models compile without a break through plain operations of torch, and give the bits of the CPU."""

from collections.abc import Iterator

import pytest
import torch

import fewbits as fb
from fewbits.kernels import force_backend

# torch.compile does it.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@pytest.fixture(autouse=True)
def _portable() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    force_backend(None)
    torch._dynamo.reset()


NAMES = ("mxfp8_e4m3", "mxfp6_e3m2", "nvfp4", "mx9", "int8_channel")


def in_one_graph_and_one_by_one(name: str, backend: str) -> None:
    """Compare a layer, compiled without a break and not compiled, with what the CPU's kernels give."""
    torch.manual_seed(0)
    layer = fb.prepare(torch.nn.Sequential(torch.nn.Linear(64, 32)), f"mx:weight={name},activation={name}")
    x = torch.randn(8, 64)
    with torch.no_grad():
        wanted = layer(x)
        force_backend("portable")
        assert torch.equal(layer(x), wanted)
        assert torch.equal(torch.compile(layer, fullgraph=True, backend=backend)(x), wanted)


@pytest.mark.parametrize("name", NAMES)
def test_the_forward_of_a_prepared_layer_has_no_break_and_the_bits_of_the_cpu(name: str) -> None:
    in_one_graph_and_one_by_one(name, "eager")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_inductor_gives_a_prepared_layer_the_same_bits(name: str) -> None:
    in_one_graph_and_one_by_one(name, "inductor")
