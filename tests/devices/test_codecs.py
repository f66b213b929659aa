"""Codecs on a device: runs are encoded and decoded there, and a network of the host gets only their bytes."""

import pytest
import torch

from fewbits import distributed, optim
from fewbits.distributed import wire
from fewbits.distributed.peers import Peers
from fewbits.errors import ArgumentError
from fewbits.recipes import codec
from tests.devices.fake_device import DEVICE, FakeDevice
from tests.fake_group import imagined

CODECS = (
    "fp32",
    "bf16",
    "mxfp8_e4m3",
    "mxfp4:feedback",
    "int8:stochastic",
    "mxfp8_e4m3:kahan",
    "topk:density=0.1,feedback",
    "topk:density=0.1,values=mxfp8_e4m3,feedback,momentum=0.9",
)
# Of these the host tells the other processes whether values are finite, or how large they are.
TOLD = ("fp8_e4m3:aps", "fp8_e4m3:auto_scale", "int8:stochastic")


def gradient(n: int = 300) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("text", CODECS)
def test_encode_and_decode_transfer_nothing_and_have_the_bits_of_the_cpu(
    device: FakeDevice, text: str
) -> None:
    chosen, x = codec(text), gradient()
    n = wire.nbytes(chosen, x.numel())

    def carried(given: torch.Tensor) -> list[torch.Tensor]:
        run, values = given.new_zeros(n, dtype=torch.uint8), given.new_zeros(x.numel())
        residual = given.new_zeros(x.numel()) if chosen.feedback else None
        velocity = given.new_zeros(x.numel()) if chosen.momentum else None
        wire.encode(given.clone(), chosen, run, 7, residual, velocity)
        wire.decode(run, chosen, values)
        wire.add(run, chosen, values)
        return [t for t in (run, values, residual, velocity) if t is not None]

    there = carried(device.put(x))
    assert device.transfers == []
    for mine, theirs in zip(there, carried(x), strict=True):
        assert torch.equal(device.seen(mine), theirs)


@pytest.mark.parametrize("text", [*CODECS, *TOLD])
def test_a_reduction_reads_no_value_but_what_processes_tell_each_other(device: FakeDevice, text: str) -> None:
    x = gradient()
    there, states = device.put(x), [distributed.CodecState(text) for _ in range(2)]
    with imagined(1):
        for _ in range(2):
            mean = distributed.all_reduce(there, text, state=states[0], op="mean")
            read = sum("(2,)" not in t.what and not t.what.startswith("a number") for t in device.reads)
            assert read == ("topk" in text)  # whose bytes go to all processes, this one too
            assert mean.device == DEVICE
            wanted = distributed.all_reduce(x, text, state=states[1], op="mean")
            assert torch.equal(device.seen(mean), wanted)
            device.transfers.clear()


def test_only_bytes_of_the_run_leave_for_a_network_of_the_host(device: FakeDevice) -> None:
    run = device.put(torch.arange(33, dtype=torch.uint8))
    with imagined(2):
        mine, other = Peers().exchange(lambda rank: run, [33, 33], "all_to_all")
    assert mine is run
    assert other.device == DEVICE
    assert [(t.way, "(33,)" in t.what) for t in device.transfers] == [("read", True), ("write", True)]


def test_tensors_of_two_devices_are_refused_in_one_message(device: FakeDevice) -> None:
    with (
        imagined(1),
        pytest.raises(ArgumentError, match=f"tensors on cpu and {DEVICE} in one message"),
    ):
        distributed.all_reduce([gradient(), device.put(gradient())], "mxfp8_e4m3")


def test_what_a_codec_remembers_moves_to_the_device_once(device: FakeDevice) -> None:
    x, state = gradient(), distributed.CodecState("mxfp4:feedback")
    with imagined(1):
        distributed.all_reduce(x, "mxfp4:feedback", state=state)
        for moves in (1, 0):
            device.transfers.clear()
            distributed.all_reduce(device.put(x), "mxfp4:feedback", state=state)
            assert len(device.transfers) == moves


@pytest.mark.parametrize("text", ["fp32", "mxfp8_e4m3", "fp8_e4m3:aps"])
def test_the_owner_of_a_state_averages_clips_and_steps_on_the_device(device: FakeDevice, text: str) -> None:
    def stepped(w: torch.nn.Parameter) -> tuple[torch.Tensor, float]:
        zero = distributed.ZeroOptimizer(optim.AdamW([w], lr=0.1), text)
        (w * w).sum().backward()
        norm = zero.clip_(0.5)
        zero.step()
        return w.detach(), norm

    with imagined(1):
        there, norm = stepped(torch.nn.Parameter(device.put(gradient())))
        here, wanted = stepped(torch.nn.Parameter(gradient()))
    assert norm == pytest.approx(wanted)
    assert torch.allclose(device.seen(there), here, rtol=1e-6, atol=1e-7)
    assert not torch.equal(here, gradient())
