"""What does a call cost that returns its result in new memory, beside torch's own copy into new memory?

Each result is gone before the next one is made, so that every call gets its pages anew. Peers: a copy of the
same values by torch and by NumPy. All in one process, alternating, medians.

    python benchmarks/new_results.py [--lines 65536] [--columns 1024] [--formats mxfp4] [--rounds 5]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from _alternating import arguments, seconds, table, write

import fewbits as fb


def measure(name: str, lines: int, columns: int, rounds: int) -> list[dict[str, Any]]:
    """Return the time of each call, and of the copy, for one format."""
    w = torch.randn(lines, columns, generator=torch.Generator().manual_seed(0))
    array, q, there = w.numpy(), fb.quantize(w, name), torch.zeros_like(w)
    packed_array = fb.quantize(array, name)
    calls: dict[str, Callable[[], Any]] = {
        "fake_quantize": lambda: fb.fake_quantize(w, name),
        "quantize": lambda: fb.quantize(w, name),
        "dequantize": q.dequantize,
        "fake_quantize, NumPy": lambda: fb.fake_quantize(array, name),
        "quantize, NumPy": lambda: fb.quantize(array, name),
        "dequantize, NumPy": packed_array.dequantize,
        "fake_quantize, out=": lambda: fb.fake_quantize(w, name, out=there),
    }
    taken = seconds({**calls, "torch": w.clone, "numpy": array.copy}, rounds)
    return [
        {
            "call": call,
            "format": name,
            "milliseconds": taken[call] * 1e3,
            "times_torch": taken[call] / taken["torch"],
            "times_numpy": taken[call] / taken["numpy"],
        }
        for call in calls
    ]


def main() -> None:
    """Print the table and write the figures."""
    given = arguments(__doc__ or "", lines=65536, columns=1024)
    names = [n for n in given.formats.split(",") if n] or ["mxfp4"]
    rows = [row for n in names for row in measure(n, given.lines, given.columns, given.rounds)]
    print(f"{given.lines} x {given.columns} float32; milliseconds a call, and parts of a new copy")
    table(
        ("call", "format", "fewbits", "of torch's", "of NumPy's"),
        [(r["call"], r["format"], r["milliseconds"], r["times_torch"], r["times_numpy"]) for r in rows],
    )
    write(given.json, rows)


if __name__ == "__main__":
    main()
