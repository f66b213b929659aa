"""Operators on another device have the bits of the CPU and copy nothing; what has no form is refused."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits import metrics, sparsity
from fewbits.errors import ArgumentError, DataError
from fewbits.formats import Format, parse, pattern
from fewbits.kernels import ops
from fewbits.kernels.bits.options import Choices, options
from fewbits.kernels.ops.counter_uniform import counter_uniform
from tests import cases
from tests.devices.fake_device import DEVICE, DeviceTensor, FakeDevice, fake_device
from tests.kernels.ops.test_flat import normal
from tests.kernels.ops.test_portable import same
from tests.native.nm.test_stream import sparse


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    with fake_device() as found:
        yield found


def moved(device: FakeDevice, x: Any) -> Any:
    """Return tensors, in lists and packed ones too, on the device."""
    if isinstance(x, fb.NarrowTensor):
        return x.remade(tuple(moved(device, part) for part in x.pieces), x.shape, x.axis)
    if isinstance(x, list | tuple):
        return type(x)(moved(device, each) for each in x)
    return device.put(x) if isinstance(x, torch.Tensor) else x


def seen(device: FakeDevice, x: Any) -> Any:
    """Return the values of what lies on the device."""
    if isinstance(x, fb.NarrowTensor):
        return [seen(device, part) for part in x.pieces]
    if isinstance(x, list | tuple):
        return [seen(device, each) for each in x]
    return device.seen(x) if isinstance(x, torch.Tensor) else x


def on_cpu(x: Any) -> Any:
    """Return what lies on the CPU as :func:`seen` returns the same from the device."""
    if isinstance(x, fb.NarrowTensor):
        return on_cpu(x.pieces)
    return [on_cpu(each) for each in x] if isinstance(x, list | tuple) else x


def holds(device: FakeDevice, function: Callable[..., Any], *args: Any, waits: int = 0) -> None:
    """Check that a function does on the device what it does on the CPU, and how often the host waits for it.

    What it writes to its arguments counts too.
    """
    there = moved(device, args)
    wanted = function(*args)
    device.transfers.clear()
    found = function(*there)
    crossed = [str(transfer) for transfer in device.transfers]
    assert len(crossed) == waits, crossed
    assert same(seen(device, [found, *there]), on_cpu([wanted, *args]))


FORMATS = tuple(
    map(parse, ("mxfp4", "nvfp4", "int8_channel", "mx6", "fp8_e4m3", "fp8_e5m2", "fp16", "int8_tensor"))
)


@pytest.mark.parametrize("fmt", FORMATS, ids=cases.label)
def test_flat_operations_copy_nothing(device: FakeDevice, fmt: Format) -> None:
    for n, dtype in ((33, torch.float32), (700, torch.bfloat16)):
        x, pieces = normal(n, dtype), list(fb.quantize(torch.zeros(n), fmt).pieces)
        for rounding in ("nearest_even", "stochastic"):
            choices = Choices(rounding)
            holds(device, lambda x, q, c=choices: ops.quantize_flat(x, fmt, c, 5, q), x, pieces)
            residual = normal(n + 1)[:n] * 0.01
            holds(
                device,
                lambda x, r, q, c=choices: ops.quantize_with_feedback(x, r, fmt, c, 5, q),
                *(x, residual, pieces),
            )
        holds(device, lambda q, y: ops.dequantize_flat(q, fmt, y), pieces, torch.empty_like(x))
        holds(device, lambda q, y, n=n: ops.dequantize_add(q, fmt, n, y), pieces, normal(n))


def test_the_largest_values_copy_nothing_but_answers(device: FakeDevice) -> None:
    x = normal(5000)
    x[7] = torch.inf
    holds(device, lambda x: ops.top_k(x, 50), x)
    holds(device, ops.largest_finite, x, waits=1)


def test_initial_values_are_made_where_they_are_needed(device: FakeDevice) -> None:
    wanted = counter_uniform(7, 5, 1000, 0.3, torch.device("cpu"))
    assert same(device.seen(counter_uniform(7, 5, 1000, 0.3, DEVICE)), wanted)
    assert device.transfers == []


@pytest.mark.parametrize("name", ["mxfp4", "bf16", "mxfp6_e2m3"])
def test_streams_wait_for_one_number(device: FakeDevice, name: str) -> None:
    q = fb.quantize(sparse("2:4", 5, 700), name)
    holds(device, lambda q: q.compressed("2:4"), q, waits=1)
    holds(device, lambda q: q.with_all_codes(), q.compressed("2:4"), waits=1)
    crowded = fb.quantize(torch.ones(2, 8), name)
    with pytest.raises(DataError, match="line 0 has a group of 4 with more than 2 values"):
        moved(device, crowded).compressed("2:4")


@pytest.mark.parametrize("name", ["mxfp4", "int8_channel", "nvfp4"])
def test_products_with_packed_weights_copy_nothing(device: FakeDevice, name: str) -> None:
    q, x = fb.quantize(normal(5 * 700).reshape(5, 700), name), normal(2 * 700).reshape(2, 700)
    whole = torch.randint(-8, 9, x.shape, generator=torch.Generator().manual_seed(0)).float()
    if name != "nvfp4":  # whose sums of floats depend on their order
        holds(device, lambda x, q: fb.matvec(q, x, activation="int8_32"), x, q)
    w = fb.quantize(torch.round(normal(5 * 700).reshape(5, 700)).clamp(-4, 4), "mxfp4")
    holds(device, lambda x, q: fb.matvec(q, x), whole, w)  # exact, whatever the order
    sparse_one = fb.quantize(torch.round(sparse("2:4", 5, 700)).clamp(-4, 4), "mxfp4", sparsity="2:4")
    vectors, parts = moved(device, (whole, sparse_one.pieces))
    device.transfers.clear()
    y = ops.gemv(vectors, parts, sparse_one.format, 5, pattern("2:4"))
    assert device.transfers == []
    assert same(device.seen(y), whole @ sparse_one.dense().t())


def test_products_of_matrices_copy_nothing(device: FakeDevice) -> None:
    a, b = normal(5 * 96).reshape(5, 96), normal(96 * 33).reshape(96, 33)
    holds(device, ops.addition_product, a, b)
    whole = a.mul(4).round(), b.mul(4).round()  # whose sums are exact
    holds(device, ops.bfloat16_product, *whole)
    formats, choices = (parse("mxint8"), parse("mxint8")), (Choices(), Choices())
    holds(device, lambda a, b: ops.rounded_product(a, b, formats, choices), *whole)


def test_sums_of_errors_cross_as_sums(device: FakeDevice) -> None:
    x = normal(40 * 96).reshape(40, 96)
    for name in ("mxfp4", "int8_channel", "fp8_e4m3"):
        fmt = parse(name)
        holds(device, lambda x, fmt=fmt: ops.tally(x, fmt, 1, options(fmt)), x, waits=2)
        holds(device, lambda x, fmt=fmt: metrics.measure(x, fmt), x, waits=2)
    there = device.put(x), device.put(fb.fake_quantize(x, "mxfp4"))
    device.transfers.clear()
    assert metrics.qsnr(*there) == pytest.approx(metrics.qsnr(x, fb.fake_quantize(x, "mxfp4")), abs=1e-12)
    assert len(device.transfers) == 2


def test_results_are_written_where_they_are_asked_for(device: FakeDevice) -> None:
    x = normal(3 * 40).reshape(3, 40)
    out = fb.quantize(torch.zeros(3, 40), "mxfp4")
    holds(device, lambda x, q: fb.quantize(x, "mxfp4", out=q), x, out)
    holds(device, lambda x, y: fb.fake_quantize(x, "mxfp4", out=y), x, torch.empty_like(x))
    holds(device, lambda q, y: fb.dequantize(q, out=y), out, torch.empty_like(x))
    calls: tuple[Callable[[], object], ...] = (
        lambda: fb.fake_quantize(device.put(x), "mxfp4", out=torch.empty_like(x)),
        lambda: fb.dequantize(moved(device, out), out=torch.empty_like(x)),
    )
    for call in calls:
        with pytest.raises(
            ArgumentError, match=f"on {DEVICE}; give one of its family, dtype, shape and device"
        ):
            call()
    with pytest.raises(ArgumentError, match=f"are not contiguous or not on {DEVICE}; leave it out"):
        fb.quantize(device.put(x), "mxfp4", out=out)


def test_masks_and_metadata_of_sparse_weights_need_no_host(device: FakeDevice) -> None:
    w = normal(32 * 64).reshape(32, 64)
    holds(device, lambda w: sparsity.mask(w, "2:4"), w)
    holds(device, lambda w: sparsity.transposable_mask(w, "2:4", search="greedy"), w)


def test_what_only_the_cpu_does_is_refused_by_name(device: FakeDevice) -> None:
    x = device.put(normal(4 * 8).reshape(4, 8))
    with pytest.raises(
        ArgumentError, match=rf"weights on {DEVICE}; the search for an order .* only on the CPU.*\.cpu\(\)"
    ):
        sparsity.find_order(x)
    q = moved(device, fb.quantize(normal(64), "mxfp4"))
    with pytest.raises(
        ArgumentError, match=rf"a tensor on {DEVICE}; .* only on the CPU.* move it with \.cpu\(\)"
    ):
        q.parts()
    with pytest.raises(ArgumentError, match=rf"residual is on cpu; expected {DEVICE}, where the rest is"):
        ops.quantize_with_feedback(x.flatten(), torch.zeros(32), "int8", Choices(), 0, [])


def test_a_copy_to_the_host_would_be_seen(device: FakeDevice) -> None:
    """The control: what the operators did before."""
    with pytest.raises(AssertionError, match="read of"):
        holds(device, lambda x: fb.fake_quantize(x.cpu(), "mxfp4").to(x.device), normal(40))
    assert isinstance(device.put(normal(4)), DeviceTensor)
    assert np.isfinite(normal(4).numpy()).all()
