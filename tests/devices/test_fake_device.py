"""The device that counts transfers: every way to the host is seen, so a count of none says something."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fewbits.distributed.arguments import is_finite
from fewbits.kernels.ops import tensors
from fewbits.recipes import codec
from tests.devices.fake_device import DEVICE, FakeDevice

_LIBRARY = torch.library.Library("fewbits_tests", "FRAGMENT")
_LIBRARY.define("through_host(Tensor x) -> Tensor")


def _through_host(x: torch.Tensor) -> torch.Tensor:
    return (x.detach().cpu() * 2).to(x.device)  # as operators did that had kernels for the CPU only


_LIBRARY.impl("through_host", _through_host, "CompositeExplicitAutograd")

READS: dict[str, Callable[[torch.Tensor], object]] = {
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "item": lambda x: x[0, 0].item(),
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x.argmax()),
    "bool": lambda x: bool(x.isfinite().all()),
    "if": lambda x: 1 if x[0, 0] > 0 else 2,
    "tolist": lambda x: x.tolist(),
    "equal": lambda x: torch.equal(x, x),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "copy_": lambda x: torch.empty(4, 8).copy_(x),
    "lu_factor": lambda x: torch.linalg.lu_factor(x[:, :4]),
    "operator": torch.ops.fewbits_tests.through_host,
}
WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "tensor": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "to": lambda x: torch.ones(3).to(x.device),
    "new_tensor": lambda x: x.new_tensor([1.0]),
    "copy_": lambda x: x.copy_(torch.ones(4, 8)),
    "operator": torch.ops.fewbits_tests.through_host,
}
REFUSED: dict[str, Callable[[torch.Tensor], object]] = {
    "numpy": lambda x: x.numpy(),
    "asarray": np.asarray,
    "data_ptr": lambda x: x.data_ptr(),
    "storage": lambda x: x.untyped_storage().data_ptr(),
    "array": tensors.array,
    "mixed": lambda x: x + torch.ones(4, 8),
}
QUIET: dict[str, Callable[[torch.Tensor], object]] = {
    "arithmetic": lambda x: (x * 2 + 1).exp() @ x.T,
    "views": lambda x: x.view(torch.int32).T.reshape(-1)[3:].view(torch.float32),
    "made there": lambda x: torch.zeros(3, device=x.device) + torch.arange(3, device=x.device),
    "choice": lambda x: torch.where(x > 0, x, 0.0).clamp(max=torch.tensor(2.0)),
    "in place": lambda x: x.mul_(2).add_(x).masked_fill_(x > 0, 1.0),
}


@pytest.fixture
def x(device: FakeDevice) -> torch.Tensor:
    return device.put(torch.randn(4, 8, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("way", READS)
def test_what_the_host_reads_is_noted(device: FakeDevice, x: torch.Tensor, way: str) -> None:
    READS[way](x)
    assert device.reads


@pytest.mark.parametrize("way", WRITES)
def test_what_the_host_writes_is_noted(device: FakeDevice, x: torch.Tensor, way: str) -> None:
    WRITES[way](x)
    assert [t.way for t in device.transfers].count("write") == 1


@pytest.mark.parametrize("way", REFUSED)
def test_memory_of_the_device_is_not_the_hosts(device: FakeDevice, x: torch.Tensor, way: str) -> None:
    with pytest.raises((RuntimeError, TypeError, ValueError, AttributeError)):
        REFUSED[way](x)


@pytest.mark.parametrize("way", QUIET)
def test_what_stays_on_the_device_is_no_transfer(device: FakeDevice, x: torch.Tensor, way: str) -> None:
    values = device.seen(x)
    found = QUIET[way](x)
    assert device.transfers == []
    assert isinstance(found, torch.Tensor)
    assert found.device == DEVICE
    assert not found.is_cpu
    wanted = QUIET[way](values)
    if way != "made there":
        assert isinstance(wanted, torch.Tensor)
        assert torch.equal(device.seen(found), wanted)


def test_a_transfer_says_which_line_of_fewbits_asked(device: FakeDevice, x: torch.Tensor) -> None:
    assert is_finite(x, codec("int8"))
    assert "fewbits/" in str(device.transfers[0])


def test_gradients_flow_on_the_device(device: FakeDevice, x: torch.Tensor) -> None:
    w = torch.nn.Parameter(x)
    (w.T * 3).sum().backward()
    assert w.grad is not None
    assert w.grad.device == DEVICE
    assert device.transfers == []
    assert torch.equal(device.seen(w.grad), torch.full((4, 8), 3.0))


def test_parameters_that_get_other_data_compute_with_it(device: FakeDevice, x: torch.Tensor) -> None:
    w = torch.nn.Parameter(x)
    w.data = x.bfloat16()
    assert w.dtype == torch.bfloat16
    assert torch.equal(device.seen(w.float()), device.seen(x).bfloat16().float())
