"""How long does it take to find the 1 % of largest magnitudes, whatever the values are?

Limit: torch summing the array, which reads it once. Peer: ``torch.topk(x.abs(), k)``, which gives the values
too and leaves open which of equal ones it takes. On one thread. The arrays: 8 Mi float32 that are normal, in
rising and in falling order of magnitude, all equal, all zero, with NaN, of heavy tails, and of few distinct
values. All in one process, with the peer before and after each call, medians.

    python benchmarks/top_k.py [--mebi 8] [--permille 10] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from _alternating import arguments, beside, table, write

from fewbits.kernels import ops


def arrays(n: int) -> dict[str, Callable[[], torch.Tensor]]:
    """Return what makes each array: one at a time is in memory."""
    random = torch.Generator().manual_seed(0)

    def normal() -> torch.Tensor:
        return torch.randn(n, generator=random)

    return {
        "normal": normal,
        "sorted": lambda: normal().sort().values,
        "rising": lambda: normal().abs().sort().values,
        "falling": lambda: normal().abs().sort(descending=True).values,
        "equal": lambda: torch.ones(n),
        "zeros": lambda: torch.zeros(n),
        "1 % NaN": lambda: normal().masked_fill(torch.rand(n, generator=random) < 0.01, torch.nan),
        "half NaN": lambda: normal().masked_fill(torch.rand(n, generator=random) < 0.5, torch.nan),
        "Cauchy": lambda: torch.empty(n).cauchy_(generator=random),
        "seven values": lambda: torch.randint(-3, 4, (n,), generator=random).float(),
        "steps that rise": lambda: torch.arange(n).div(n // 200, rounding_mode="floor").float(),
    }


def measure(name: str, x: torch.Tensor, k: int, rounds: int) -> dict[str, Any]:
    """Return times and ratios of one array."""
    calls = {"read": x.sum, "fewbits": lambda: ops.top_k(x, k)}
    peer, parts = beside(lambda: torch.topk(x.abs(), k), calls, rounds)
    return {
        "values": name,
        "n": x.numel(),
        "k": k,
        "milliseconds": 1e3 * peer * parts["fewbits"],
        "torch_milliseconds": 1e3 * peer,
        "of_limit": parts["read"] / parts["fewbits"],
        "times_torch": 1 / parts["fewbits"],
    }


def main() -> None:
    """Print the table and write the figures."""
    given = arguments(__doc__ or "", mebi=8, permille=10)
    torch.set_num_threads(1)
    n = given.mebi * 2**20
    k = n * given.permille // 1000
    rows = [measure(name, make(), k, given.rounds) for name, make in arrays(n).items()]
    print(f"the {k} largest magnitudes of {n} float32")
    table(
        ("values", "ms", "torch ms", "of limit", "times torch"),
        [
            (r["values"], r["milliseconds"], r["torch_milliseconds"], r["of_limit"], r["times_torch"])
            for r in rows
        ],
    )
    write(given.json, rows)


if __name__ == "__main__":
    main()
