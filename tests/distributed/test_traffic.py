"""Bytes counted are bytes computed, and bytes that the kernel's sockets say went through them."""

import os
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import distributed

import fewbits as fb
from fewbits.distributed import CodecState, Traffic, all_gather, all_reduce, all_to_all, reduce_scatter
from tests.distributed.team import Team

Teams = Callable[[int], Team]

N = 1 << 18
ANNOUNCED = 512  # bytes of what processes agree on before a collective
# Bytes of a value in one run of N / 4 values, a multiple of 32 and of 256.
WIDTHS = {
    "fp32": 4,
    "fp16": 2,
    "mxfp8_e4m3": 1 + 1 / 32,
    "mxfp6_e3m2": 0.75 + 1 / 32,
    "mxfp4": 0.5 + 1 / 32,
    "mx6": 0.75,
    "fp4_e3m0": 0.5,
    "int8_256": 1 + 4 / 256,
}


def bytes_acked() -> int:
    """Return how many bytes this process's TCP sockets got through (RFC 4898, ThruOctetsAcked)."""
    total = 0
    for open_file in Path("/proc/self/fd").iterdir():
        number = int(open_file.name)
        if not (open_file.is_symlink() and str(open_file.readlink()).startswith("socket:")):
            continue
        with socket.socket(fileno=os.dup(number)) as one, suppress(OSError):  # of another kind than TCP's
            info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            total += struct.unpack_from("Q", info, 120)[0]
    return total


def through_sockets(call: Callable[[], object]) -> int:
    """Return the bytes that a collective sends from here; all have arrived when it returns everywhere."""
    distributed.barrier()
    before = bytes_acked()
    distributed.barrier()
    for_barriers = bytes_acked() - before
    before = bytes_acked()
    call()
    distributed.barrier()
    return bytes_acked() - before - for_barriers


def count_everything(rank: int, size: int) -> None:
    x = torch.randn(N)
    for text, width in WIDTHS.items():
        for reduce, runs in ((all_reduce, 2), (reduce_scatter, 1)):
            traffic = Traffic()
            sent = through_sockets(lambda: reduce(x, text, traffic=traffic))  # noqa: B023
            values = runs * (size - 1) * N // size * width
            assert traffic.nbytes == values + (size - 1) * ANNOUNCED, (text, reduce)
            assert traffic.wide == runs * (size - 1) * N // size * 4
            assert traffic.sent["agreement"].nbytes == (size - 1) * ANNOUNCED
            # Each message of gloo has a preamble, and what is not there yet when asked is not acked.
            assert 0.99 * traffic.nbytes < sent < 1.01 * traffic.nbytes + 4096, (text, reduce, sent)
    for call, runs in ((all_gather, 1), (all_to_all, 1 / size)):
        traffic = Traffic()
        sent = through_sockets(lambda: call(x, "mxfp4", traffic=traffic))  # noqa: B023
        assert traffic.sent[call.__name__].nbytes == (size - 1) * runs * N * WIDTHS["mxfp4"]
        assert 0.99 * traffic.nbytes < sent < 1.01 * traffic.nbytes + 4096
    q = fb.quantize(x.view(64, -1), "mxfp4")
    traffic = Traffic()
    sent = through_sockets(lambda: all_gather(q, traffic=traffic))
    assert traffic.sent["all_gather"].nbytes == (size - 1) * q.nbytes
    assert 0.99 * traffic.nbytes < sent < 1.01 * traffic.nbytes + 4096
    # What is kept of 1 %: values and places, 18 bits each, of which the last byte is full.
    traffic = Traffic()
    sent = through_sockets(lambda: all_reduce(x, "topk:density=0.01", traffic=traffic))
    kept = -(-N // 100)
    assert traffic.sent["all_gather"].nbytes == (size - 1) * (4 * kept + -(-kept * 18 // 32) * 4)
    assert sent < 1.01 * traffic.nbytes + 4096
    # The scale that processes agree on takes a byte of each layer.
    traffic = Traffic()
    all_reduce([x, x, x], "fp8_e5m2:aps", traffic=traffic)
    assert traffic.sent["maxima"].nbytes == (size - 1) * 3
    state, traffic = CodecState("fp8_e4m3:auto_scale"), Traffic()
    all_reduce(x, "fp8_e4m3:auto_scale", state=state, traffic=traffic)
    assert traffic.sent["maxima"].nbytes == (size - 1) * 16


@pytest.mark.skipif(sys.platform != "linux", reason="sockets tell what they sent under Linux only")
@pytest.mark.parametrize("size", [2, 4])
def test_bytes_counted_are_those_computed_and_those_of_the_sockets(team: Teams, size: int) -> None:
    team(size).run(count_everything)
