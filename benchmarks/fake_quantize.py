"""How far is fake quantization from the speed of memory, and from its nearest peer?

Limit: a copy of the array by NumPy, which also reads 4 bytes and writes 4 for each value into fresh memory.
Peer: torchao, eager, quantizing to the same MX format and back; where it is installed and has the format.
All are measured in one process, alternating, and the median of the rounds counts.

    python benchmarks/fake_quantize.py [--mebibytes 64] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

import fewbits as fb
from fewbits.kernels import native

FORMATS = ("fp8_e4m3", "bf16", "int8", "mxfp8_e4m3", "mxfp6_e2m3", "mxfp4", "mxint8", "msfp16", "mx9", "mx4")


def _torchao(name: str) -> Callable[[torch.Tensor], Any] | None:
    """Return torchao's way to the format and back, or None."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # it reports the GPU extensions that it cannot load
    try:
        from torchao.prototype.mx_formats.mx_tensor import MXTensor
    except ImportError:
        return None
    dtype = {
        "mxfp8_e4m3": torch.float8_e4m3fn,
        "mxfp8_e5m2": torch.float8_e5m2,
        "mxfp4": torch.float4_e2m1fn_x2,
    }
    if name not in dtype:
        return None
    return lambda x: MXTensor.to_mx(x, dtype[name], 32).dequantize(torch.float32)


def _seconds(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the median time of each call; every round times each of them once."""
    for call in calls.values():
        call()  # allocates, wakes the threads, fills the caches
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = perf_counter()
            call()
            times[name].append(perf_counter() - start)
    return {name: median(taken) for name, taken in times.items()}


def _measure(name: str, x: np.ndarray[Any, np.dtype[np.float32]], rounds: int) -> dict[str, Any]:
    fmt, tensor = fb.format(name), torch.from_numpy(x)
    chosen = fb.kernels.options(fmt)
    calls: dict[str, Callable[[], Any]] = {
        "copy": x.copy,
        "fewbits": lambda: native.fake_quantize(x, fmt, chosen, threads=torch.get_num_threads()),
        "fewbits, 1 thread": lambda: native.fake_quantize(x, fmt, chosen, threads=1),
        "fb.fake_quantize": lambda: fb.fake_quantize(tensor, fmt),
    }
    peer = _torchao(name)
    if peer is not None:
        calls["torchao"] = lambda: peer(tensor)
    speed = {who: 2 * x.nbytes / taken / 1e9 for who, taken in _seconds(calls, rounds).items()}
    return {"format": name, "gigabytes_per_second": speed}


def _line(row: dict[str, Any]) -> str:
    speed = row["gigabytes_per_second"]
    ours, peer = speed["fewbits"], speed.get("torchao")
    cells = [speed["copy"], ours, speed["fewbits, 1 thread"], speed["fb.fake_quantize"], ours / speed["copy"]]
    against = f"{peer:10.2f}{ours / peer:9.1f}" if peer else f"{'-':>10}{'-':>9}"
    return f"{row['format']:<12}" + "".join(f"{cell:10.2f}" for cell in cells) + against


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mebibytes", type=int, default=64, help="size of the array (default 64)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of which the median counts (default 5)")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    given = parser.parse_args()

    x = np.random.default_rng(0).standard_normal((given.mebibytes * 256, 1024)).astype(np.float32)
    machine = {
        "isa": native.active_isa(),
        "threads": torch.get_num_threads(),
        "cpu": platform.processor() or platform.machine(),
        "mebibytes": given.mebibytes,
        "rounds": given.rounds,
        "command": " ".join(["python", *sys.argv]),
    }
    print(f"{given.mebibytes} MiB of float32, {machine['isa']}, {machine['threads']} threads")
    print("GB/s, read and written")
    heads = ("copy", "fewbits", "1 thread", "fb, torch", "of copy", "torchao", "times")
    print(f"{'format':<12}" + "".join(f"{head:>10}" for head in heads[:-1]) + f"{heads[-1]:>9}")
    rows = []
    for name in FORMATS:
        rows.append(_measure(name, x, given.rounds))
        print(_line(rows[-1]), flush=True)
    if given.json:
        given.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
