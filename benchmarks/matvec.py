"""How close do products with packed weights come to the speed at which the weights can be read?

Limit: torch summing as many bytes of float32 as the packed weights have, which reads them once. Peer: torch's
product of the same weights in bfloat16. All in one process, alternating, medians. 8192 x 65536 weights are
1 GiB in bfloat16.

    python benchmarks/matvec.py [--lines 8192] [--columns 65536] [--batch 1] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

from typing import Any

import torch
from _alternating import arguments, seconds, table, write

import fewbits as fb

FORMATS = (
    *(
        "mxfp4",
        "nvfp4",
        "mxfp6_e2m3",
        "mxfp6_e3m2",
        "mxfp8_e4m3",
        "mxfp8_e5m2",
        "mxint8",
        "mx4",
        "mx6",
        "mx9",
    ),
    *("int4_channel", "int8_channel"),
)


def measure(name: str, lines: int, columns: int, batch: int, rounds: int) -> dict[str, Any]:
    """Return rates and ratios for one format."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(lines, columns, generator=generator).bfloat16()
    q = fb.quantize(weight, name)
    q = q.to(torch.float32)
    x = torch.randn(batch, columns, generator=generator)
    xb = x.bfloat16()
    bytes_like = torch.ones(q.nbytes // 4)
    calls = {
        "read": bytes_like.sum,
        "fewbits": lambda: fb.matvec(q, x),
        "bfloat16": lambda: xb @ weight.t(),
    }
    taken = seconds(calls, rounds)
    return {
        "format": name,
        "packed_mebibytes": q.nbytes / 2**20,
        "read_gigabytes_per_second": bytes_like.numel() * 4 / taken["read"] / 1e9,
        "gigabytes_per_second": q.nbytes / taken["fewbits"] / 1e9,
        "gigaflops_per_second": 2 * batch * lines * columns / taken["fewbits"] / 1e9,
        "of_limit": taken["read"] / taken["fewbits"],
        "times_faster_than_bfloat16": taken["bfloat16"] / taken["fewbits"],
    }


def main() -> None:
    """Print the table and write the figures."""
    given = arguments(__doc__ or "", lines=8192, columns=65536, batch=1)
    names = [n for n in given.formats.split(",") if n] or FORMATS
    rows = [measure(n, given.lines, given.columns, given.batch, given.rounds) for n in names]
    size = given.lines * given.columns / 2**29
    print(f"weights {given.lines} x {given.columns}, {size:.2f} GiB in bfloat16; batch {given.batch}")
    table(
        ("format", "packed MiB", "read GB/s", "ours GB/s", "of limit", "GFLOP/s", "times torch bf16"),
        [
            (
                r["format"],
                r["packed_mebibytes"],
                r["read_gigabytes_per_second"],
                r["gigabytes_per_second"],
                r["of_limit"],
                r["gigaflops_per_second"],
                r["times_faster_than_bfloat16"],
            )
            for r in rows
        ],
    )
    write(given.json, rows)


if __name__ == "__main__":
    main()
