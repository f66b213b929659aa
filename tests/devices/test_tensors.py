"""Packed tensors on a device: made, read and multiplied there, with the bits of the CPU."""

import pytest
import torch

import fewbits as fb
from fewbits import sparsity
from fewbits.errors import ArgumentError, DataError
from fewbits.tensor import matmul, matvec
from tests.devices.fake_device import DEVICE, FakeDevice

FORMATS = ("mxfp4", "mxfp6_e3m2", "mxfp8_e4m3", "mxint8", "nvfp4", "mx9", "int8", "fp8_e5m2", "bf16")


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("format", FORMATS)
def test_quantize_dequantize_and_multiply_without_a_transfer(device: FakeDevice, format: str) -> None:
    x, v = numbers(24, 64), numbers(64, seed=1)
    there, v_there = device.put(x), device.put(v)
    q = fb.quantize(there, format)
    values, rounded, product = q.dequantize(), fb.fake_quantize(there, format), matvec(q, v_there)
    both = matmul(there, there.T, format)
    assert device.transfers == []
    assert q.device == both.device == DEVICE
    assert isinstance(values, torch.Tensor)
    on_host = fb.quantize(x, format)
    for mine, theirs in zip(q.pieces, on_host.pieces, strict=True):
        assert (mine is None) is (theirs is None)
        assert mine is None or theirs is None or torch.equal(device.seen(mine), theirs)
    assert torch.equal(device.seen(values), torch.as_tensor(on_host.dequantize()))
    assert torch.equal(device.seen(rounded), fb.fake_quantize(x, format))
    # Sums are of another order: within the bound of docs/products.md.
    w = torch.as_tensor(on_host.dequantize()).double()
    bound = (64 + 2) * 2.0**-24 * (w.abs() @ v.abs().double())
    assert ((device.seen(product).double() - w @ v.double()).abs() <= bound).all()


@pytest.mark.parametrize("rounding", ["stochastic", "nearest_away", "toward_zero", "up"])
def test_roundings_draw_and_decide_on_the_device(device: FakeDevice, rounding: str) -> None:
    x = numbers(7, 48)
    seed = 11 if rounding == "stochastic" else None
    found = fb.fake_quantize(device.put(x), "mxfp4", rounding=rounding, generator=seed)
    assert device.transfers == []
    assert torch.equal(device.seen(found), fb.fake_quantize(x, "mxfp4", rounding=rounding, generator=seed))


def test_gradients_pass_through_on_the_device(device: FakeDevice) -> None:
    w = torch.nn.Parameter(device.put(numbers(8, 32)))
    fb.fake_quantize(w, "mxfp4").square().sum().backward()
    assert w.grad is not None
    assert device.transfers == []
    assert torch.equal(device.seen(w.grad), 2 * fb.fake_quantize(numbers(8, 32), "mxfp4"))


@pytest.mark.parametrize("pattern", ["2:4", "1:4", "4:8"])
def test_masks_are_chosen_on_the_device(device: FakeDevice, pattern: str) -> None:
    w = numbers(16, 64)
    found = sparsity.mask(device.put(w), pattern)
    assert device.transfers == []
    assert torch.equal(device.seen(found), sparsity.mask(w, pattern))


def test_streams_wait_for_one_number_that_says_whether_they_are_whole(device: FakeDevice) -> None:
    w = numbers(16, 64)
    kept = w * sparsity.mask(w, "2:4")
    there, v = device.put(kept), device.put(numbers(64, seed=1))
    q = fb.quantize(there, "mxfp8_e4m3", sparsity="2:4")
    assert [t.what.split()[:2] for t in device.transfers] == [["a", "number"]]
    device.transfers.clear()
    product = matvec(q, v)
    assert device.transfers == []
    assert product.device == DEVICE
    on_host = fb.quantize(kept, "mxfp8_e4m3", sparsity="2:4")
    assert torch.equal(device.seen(q.codes), on_host.codes)
    with pytest.raises(DataError):
        fb.quantize(device.put(w), "mxfp8_e4m3", sparsity="2:4")


def test_moving_a_packed_tensor_is_a_transfer_of_its_bytes_only(device: FakeDevice) -> None:
    q = fb.quantize(numbers(8, 64), "mxfp4")
    there = q.to(DEVICE)
    assert [t.way for t in device.transfers] == ["write", "write"]
    assert there.device == DEVICE
    assert "(8, 32)" in str(device.transfers[0])
    assert "(8, 2)" in str(device.transfers[1])
    assert torch.equal(there.cpu().dequantize(), torch.as_tensor(q.dequantize()))


def test_out_on_the_cpu_is_refused_for_a_tensor_elsewhere(device: FakeDevice) -> None:
    x = numbers(4, 32)
    with pytest.raises(ArgumentError):
        fb.quantize(device.put(x), "mxfp4", out=fb.quantize(x, "mxfp4"))
    with pytest.raises(ArgumentError):
        fb.fake_quantize(device.put(x), "mxfp4", out=torch.empty_like(x))
