"""How fast are the plain operations of torch, compiled and one by one, beside the compiled kernels?

Limit: copying the array. Peer on the CPU: the compiled kernels. ``compiled`` is the plain operations under
torch.compile, ``eager`` the same one after the other. On the CPU each is the time that one thread computes,
the median of rounds that take them in turns; ``bar`` is what compiled operations are to reach of the compiled
kernels' speed. On another device only the copy is beside them, and nothing else is to run there.

    python benchmarks/portable.py [--device cpu] [--mebi 4] [--formats mxfp4,mx9] [--rounds 7] [--json FILE]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter, thread_time
from typing import Any

import torch
from _alternating import arguments, compiled_peer, seconds, table, write

import fewbits as fb
from fewbits.kernels import force_backend

MX = (
    "mxfp8_e4m3",
    "mxfp8_e5m2",
    "mxfp6_e3m2",
    "mxfp6_e2m3",
    "mxfp4",
    "mxint8",
    "mx9",
    "mx6",
    "mx4",
)
FORMATS = (*MX, "nvfp4", "int8_channel", "fp8_e4m3")
BAR = 0.3


def _device() -> torch.device:
    """Take ``--device NAME`` out of the command line."""
    if "--device" not in sys.argv:
        return torch.device("cpu")
    at = sys.argv.index("--device")
    name = sys.argv[at + 1]
    del sys.argv[at : at + 2]
    return torch.device(name)


def finished(call: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """Return a call that ends when the device has done what was asked."""
    if device.type == "cpu":
        return call

    def wait() -> None:
        call()
        torch.accelerator.synchronize()

    return wait


def by(backend: str | None, call: Callable[[], Any]) -> Callable[[], Any]:
    """Return a call under a forced backend."""

    def forced() -> None:
        force_backend(backend)
        call()
        force_backend(None)

    return forced


def measure(name: str, x: torch.Tensor, rounds: int) -> dict[str, Any]:
    """Return times and ratios of one format."""
    compiled = compiled_peer(name)
    eager = lambda: fb.fake_quantize(x, name, nonfinite="saturate")  # noqa: E731
    calls = {
        "copy": x.clone,
        "compiled": lambda: compiled(x),
        "eager": by("portable", eager),
    }
    if x.is_cpu:
        calls["native"] = by("native", eager)
    clock = thread_time if x.is_cpu else perf_counter
    times = seconds({key: finished(call, x.device) for key, call in calls.items()}, rounds, clock)
    native = times.get("native")
    return {
        "format": name,
        "dtype": str(x.dtype).removeprefix("torch."),
        "n": x.numel(),
        "compiled_milliseconds": 1e3 * times["compiled"],
        "eager_milliseconds": 1e3 * times["eager"],
        "of_copy": times["copy"] / times["compiled"],
        "of_native": None if native is None else native / times["compiled"],
        "bar": BAR if native is not None and name in MX else None,
        "eager_of_native": None if native is None else native / times["eager"],
    }


def main() -> None:
    """Print the table and write the figures."""
    device = _device()
    given = arguments(__doc__ or "", mebi=4)
    torch.set_num_threads(1)
    x = torch.randn(given.mebi * 2**10, 2**10, device=device)
    rows = [
        measure(name, x.to(dtype), given.rounds)
        for name in (given.formats.split(",") if given.formats else FORMATS)
        for dtype in (torch.float32, torch.bfloat16)
    ]
    print(f"{x.numel()} values on {device}")
    columns = (
        "format",
        "dtype",
        "compiled_milliseconds",
        "of_copy",
        "of_native",
        "bar",
        "eager_milliseconds",
        "eager_of_native",
    )
    heads = ("format", "dtype", "compiled ms", "of copy", "of native", "bar", "eager ms", "of native")
    table(heads, [tuple(row[column] for column in columns) for row in rows])
    write(given.json, rows)


if __name__ == "__main__":
    main()
