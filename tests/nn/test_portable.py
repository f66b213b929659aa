"""Prepared models compile without a break through plain operations of torch, and give the bits of the CPU."""

from collections.abc import Iterator

import pytest
import torch
from torch._inductor import config as inductor

import fewbits as fb
from fewbits.kernels import force_backend
from tests.kernels.portable.compiling import inductor_loads

# torch.compile does it.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@pytest.fixture(autouse=True)
def _portable() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    force_backend(None)
    torch._dynamo.reset()


# Without it Inductor keeps in float32 what it fuses, where bfloat16 flows between layers.
rounds_between = inductor.patch(emulate_precision_casts=True)
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


@inductor_loads
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_inductor_gives_a_prepared_layer_the_same_bits(name: str) -> None:
    with rounds_between:
        in_one_graph_and_one_by_one(name, "inductor")


def after_a_step(model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Return the result, and the gradients of the input and the parameters."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    y = model(x)
    y.square().sum().backward()
    found = [y.detach(), x.grad, *(p.grad for p in model.parameters())]
    return [t.clone() for t in found if t is not None]


def trains_in_one_graph(name: str, backend: str) -> None:
    """Compare forward and backward, compiled without a break, with the same operations one by one."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 32))
    model = fb.prepare(layers, f"mx:weight={name},activation={name},gradient={name}")
    x = torch.randn(8, 64)
    force_backend("portable")
    wanted = after_a_step(model, x)
    found = after_a_step(torch.compile(model, fullgraph=True, backend=backend), x)
    assert len(found) == len(wanted) == 6
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))
    wide = after_a_step(torch.nn.Sequential(*layers).float(), x + 1)  # the control: other numbers differ
    assert not any(torch.equal(*pair) for pair in zip(found, wide, strict=True))


# A graph of forward and backward takes seconds to trace.
@pytest.mark.parametrize(
    "name", ["mx9", *(pytest.param(n, marks=pytest.mark.slow) for n in NAMES if n != "mx9")]
)
def test_a_training_step_has_no_break_and_the_bits_of_one_that_is_not_compiled(name: str) -> None:
    trains_in_one_graph(name, "aot_eager")


@inductor_loads
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_inductor_trains_a_prepared_model_to_the_same_bits(name: str) -> None:
    with rounds_between:
        trains_in_one_graph(name, "inductor")
