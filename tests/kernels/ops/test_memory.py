"""Large results ask the system for huge pages; small ones and the memory of the caller do not."""

from __future__ import annotations

import re
from mmap import mmap
from pathlib import Path

import pytest
import torch

import fewbits as fb
from fewbits.kernels.ops import memory

MAPPINGS = Path("/proc/self/smaps")
ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")

pytestmark = pytest.mark.skipif(
    not (ENABLED.exists() and "[always]" not in ENABLED.read_text() and "VmFlags" in MAPPINGS.read_text()),
    reason="needs a Linux that says which memory asked for huge pages",
)


def asks(x: torch.Tensor) -> bool:
    """Return whether the system says that the memory in the middle of a tensor asked for huge pages."""
    middle = x.data_ptr() + x.nbytes // 2
    inside = False
    for line in MAPPINGS.read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= middle < int(bounds[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return "hg" in line.split()
    raise AssertionError("no such memory")


LARGE = torch.linspace(-3, 3, 1 << 24).view(4096, 4096)


def unasked() -> torch.Tensor:
    """Return memory of its own for as many values; what torch gives may have been a result before."""
    return torch.frombuffer(mmap(-1, LARGE.nbytes), dtype=torch.float32).view_as(LARGE)


def test_memory_for_which_nobody_asked_is_seen() -> None:
    """Else the tests below would show nothing."""
    assert not asks(unasked())


def test_rounded_values_ask() -> None:
    assert asks(fb.fake_quantize(LARGE, "mxfp4"))
    assert asks(fb.fake_quantize(LARGE.t(), "mxfp4"))
    assert asks(fb.fake_quantize(LARGE.bfloat16(), "nvfp4"))
    assert asks(fb.fake_quantize(LARGE.clone().requires_grad_(), "mxfp4"))


def test_packed_weights_and_their_values_ask() -> None:
    q = fb.quantize(LARGE.repeat(2, 1), "int8_channel")
    assert asks(q.pieces[0])
    assert asks(q.dequantize())


def test_products_ask() -> None:
    tall = torch.linspace(-1, 1, 4096 * 64).view(4096, 64)
    assert asks(fb.matmul(tall, tall.t(), "mxint8"))
    assert asks(fb.matvec(fb.quantize(tall.repeat(128, 1), "mxfp4"), tall[:8]))


def test_streams_of_sparse_weights_ask() -> None:
    w = LARGE.clone()
    w[:, ::2] = 0
    assert asks(fb.quantize(w, "mxfp8_e4m3", sparsity="2:4").pieces[0])


def test_memory_of_the_caller_is_left_as_it_is() -> None:
    out = unasked()
    fb.fake_quantize(LARGE, "mxfp4", out=out)
    assert not asks(out)


def test_only_results_of_4_mib_and_more_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(memory, "ask_for_huge_pages", lambda address, size: asked.append(size))
    for rows in (255, 256, 300):
        fb.fake_quantize(LARGE[:rows].contiguous(), "mxfp4")
    assert asked == [256 * 4096 * 4, 300 * 4096 * 4]
