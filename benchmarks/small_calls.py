"""What does a call on a small tensor cost, beside torch's own call of the same size?

64 x 128 values, of which the arithmetic takes a few microseconds. Peers: torch's product of the dense matrix,
its conversion to bfloat16 and back, or a copy. A thousand calls a round, one thread. All in one process,
alternating, medians.

    python benchmarks/small_calls.py [--lines 64] [--columns 128] [--formats mxfp4] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from _alternating import arguments, seconds, table, write

import fewbits as fb

_CALLS = 1000
Call = Callable[[], Any]


def pairs(name: str, lines: int, columns: int) -> dict[str, tuple[Call, Call]]:
    """Return our calls by name, each with torch's call of the same size."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(lines, columns, generator=generator)
    x, row = torch.randn(columns, generator=generator), torch.randn(1, columns, generator=generator)
    trained = w.clone().requires_grad_()
    array, q = w.numpy(), fb.quantize(w, name)
    packed_array = fb.quantize(array, name)

    def copy() -> torch.Tensor:
        return w.clone()

    def narrowed() -> torch.Tensor:
        return w.bfloat16().float()

    return {
        "fb.matvec": (lambda: fb.matvec(q, x), lambda: torch.mv(w, x)),
        "x @ q.t()": (lambda: row @ q.t(), lambda: row @ w.t()),
        "linear": (
            lambda: torch.nn.functional.linear(row, q),
            lambda: torch.nn.functional.linear(row, w),
        ),
        "fake_quantize": (lambda: fb.fake_quantize(w, name), narrowed),
        "fake_quantize, recorded": (lambda: fb.fake_quantize(trained, name), narrowed),
        "quantize": (lambda: fb.quantize(w, name), copy),
        "dequantize": (q.dequantize, copy),
        "fake_quantize, NumPy": (lambda: fb.fake_quantize(array, name), array.copy),
        "quantize, NumPy": (lambda: fb.quantize(array, name), array.copy),
        "dequantize, NumPy": (packed_array.dequantize, array.copy),
    }


def repeated(call: Call) -> Call:
    """Return ``call`` a thousand times over."""

    def calls() -> None:
        for _ in range(_CALLS):
            call()

    return calls


def measure(name: str, lines: int, columns: int, rounds: int) -> list[dict[str, Any]]:
    """Return the time of each call and of its peer for one format."""
    rows = []
    for call, (ours, peer) in pairs(name, lines, columns).items():
        taken = seconds({"ours": repeated(ours), "torch": repeated(peer)}, rounds)
        micro = {who: t / _CALLS * 1e6 for who, t in taken.items()}
        rows.append(
            {
                "call": call,
                "format": name,
                "microseconds": micro["ours"],
                "torch_microseconds": micro["torch"],
                "times_torch": micro["ours"] / micro["torch"],
            }
        )
    return rows


def main() -> None:
    """Print the table and write the figures."""
    given = arguments(__doc__ or "", lines=64, columns=128)
    torch.set_num_threads(1)
    names = [n for n in given.formats.split(",") if n] or ["mxfp4"]
    rows = [row for n in names for row in measure(n, given.lines, given.columns, given.rounds)]
    print(f"{given.lines} x {given.columns} values; microseconds a call")
    table(
        ("call", "format", "fewbits", "torch", "times torch"),
        [
            (r["call"], r["format"], r["microseconds"], r["torch_microseconds"], r["times_torch"])
            for r in rows
        ],
    )
    write(given.json, rows)


if __name__ == "__main__":
    main()
