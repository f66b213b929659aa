"""What does it cost to round both operands of a large product to a narrow format in the call?

Limits: torch's float32 product, and its bfloat16 product where the device has units for it and is not held to
fewer instructions. All in one process, alternating, medians.

    python benchmarks/matmul.py [--size 4096] [--rounds 5] [--device cuda] [--json FILE]
"""

from __future__ import annotations

from typing import Any

import torch
from _alternating import Calls, arguments, seconds, table, write

import fewbits as fb

FORMATS = ("mxfp8_e4m3", "mxfp4", "mxint8", "mx9")


def measure(name: str, size: int, rounds: int, device: torch.device) -> dict[str, Any]:
    """Return rates and ratios for one format."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator).to(device) for _ in range(2))
    calls: Calls = {"float32": lambda: a @ b, "fewbits": lambda: fb.matmul(a, b, name)}
    p, q = a.bfloat16(), b.bfloat16()
    if not a.is_cpu or fb.kernels.has_bfloat16_products():
        calls["bfloat16"] = lambda: p @ q
    taken = seconds(calls, rounds)
    rate = {who: 2 * size**3 / t / 1e9 for who, t in taken.items()}
    return {
        "format": name,
        "gigaflops_per_second": rate,
        "of_float32": rate["fewbits"] / rate["float32"],
        "of_bfloat16": rate["fewbits"] / rate["bfloat16"] if "bfloat16" in rate else None,
    }


def main() -> None:
    """Print the table and write the figures."""
    given = arguments(__doc__ or "", device=True, size=4096)
    names = [n for n in given.formats.split(",") if n] or FORMATS
    rows = [measure(n, given.size, given.rounds, given.device) for n in names]
    print(f"{given.size} x {given.size} x {given.size}, both operands rounded in the call; GFLOP/s")
    table(
        ("format", "float32", "bfloat16", "fewbits", "of float32", "of bfloat16"),
        [
            (
                r["format"],
                r["gigaflops_per_second"]["float32"],
                r["gigaflops_per_second"].get("bfloat16"),
                r["gigaflops_per_second"]["fewbits"],
                r["of_float32"],
                r["of_bfloat16"],
            )
            for r in rows
        ],
    )
    write(given.json, rows)


if __name__ == "__main__":
    main()
