"""How much faster is a dense system solved to double accuracy with a narrow factorization?

Peers: torch.linalg.solve and, up to 4000 unknowns, scipy.linalg.solve in double precision. All in one
process, alternating, medians. Every entry of the residual of a solution is at most 2^-52 (|A| |x| + |b|), or
the solution is the one in double precision. No narrow factors serve the matrices of condition 1e8 and 1e10.

    python benchmarks/solve_dense.py [--smallest 1000] [--largest 8000] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from _alternating import arguments, seconds, table, write
from scipy import linalg

from fewbits.solvers import factorize, solve

SIZES = (1000, 2000, 4000, 8000)


def matrices(n: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield one matrix of each class, one at a time: eight thousand unknowns take half a gigabyte."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(n, n, generator=generator, dtype=torch.float64)
    one = torch.eye(n, dtype=torch.float64)
    yield "shifted", normal + 4 * n**0.5 * one
    yield "normal", normal
    powers = 8 * torch.rand(2, n, generator=generator, dtype=torch.float64) - 4
    rows, columns = 10**powers
    yield "uneven rows and columns", rows[:, None] * normal * columns
    distance = torch.cdist(*2 * [torch.rand(n, 3, generator=generator, dtype=torch.float64)])
    yield "RBF kernel", torch.exp(-distance.square() / 0.02) + 1e-2 * one
    # The potential of unit charges; of one in its own cell, that of a ball of the same volume.
    own = 1.5 * (4 / 3 * torch.pi * n) ** (1 / 3)
    yield "Green's operator", torch.where(one > 0, own, 1 / distance)
    left = torch.linalg.qr(normal)[0]
    right = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))[0]
    for digits in (4, 8, 10):
        yield f"randsvd 1e{digits}", left * torch.logspace(0, -digits, n, dtype=torch.float64) @ right
    values = torch.ones(n, dtype=torch.float64)
    values[-1] = 1e-8
    yield "one of 1e-8", left * values @ right


def main() -> None:
    """Print the table and write the figures."""
    given = arguments(__doc__ or "", smallest=1000, largest=8000)
    rows: list[dict[str, Any]] = []
    for n in (s for s in SIZES if given.smallest <= s <= given.largest):
        b = torch.ones(n, dtype=torch.float64)
        for name, a in matrices(n):
            plain, side = a.numpy(), b.numpy()
            calls: dict[str, Any] = {
                "fewbits": lambda a=a, b=b: solve(a, b),
                "torch": lambda a=a, b=b: torch.linalg.solve(a, b),
            }
            if n <= 4000:
                calls["scipy"] = lambda a=plain, b=side: linalg.solve(a, b)
            taken = seconds(calls, given.rounds if n < 8000 else min(given.rounds, 3))
            found = factorize(a).solve(b)
            rows.append(
                {
                    "n": n,
                    "matrix": name,
                    "seconds": taken["fewbits"],
                    "of_torch": taken["torch"] / taken["fewbits"],
                    "of_scipy": taken["scipy"] / taken["fewbits"] if "scipy" in taken else None,
                    "path": " ".join(f"{s.precision}:{s.code}" for s in found.stages),
                    "backward_error_over_eps": found.backward_error / np.finfo(np.float64).eps,
                }
            )
    table(
        ("n", "matrix", "s", "times torch", "times scipy", "path", "backward error / eps"),
        [tuple(r.values()) for r in rows],
    )
    write(given.json, rows)


if __name__ == "__main__":
    main()
