"""How much faster is a dense system solved to double accuracy with a narrow factorization?

Peers: torch.linalg.solve and scipy.linalg.solve in double precision. All in one process, alternating,
medians. Every solution meets LAPACK's criterion max |r| <= sqrt(n) max |x| |A| eps, or is LAPACK's own in
double precision.

    python benchmarks/solve_dense.py [--largest 4000] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from _alternating import arguments, seconds, table, write
from scipy import linalg

from fewbits.solvers import solve

SIZES = (1000, 2000, 4000, 8000)


def matrices(n: int) -> dict[str, torch.Tensor]:
    """Return one matrix of each class."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(n, n, generator=generator, dtype=torch.float64)
    points = torch.rand(n, 3, generator=generator, dtype=torch.float64)
    distance = torch.cdist(points, points)
    return {
        "normal": normal,
        "shifted": normal + 4 * n**0.5 * torch.eye(n, dtype=torch.float64),
        "kernel": torch.exp(-distance / 0.1) + 1e-2 * torch.eye(n, dtype=torch.float64),
    }


def main() -> None:
    """Print the table and write the figures."""
    given = arguments(__doc__ or "", largest=4000)
    rows: list[dict[str, Any]] = []
    for n in (s for s in SIZES if s <= given.largest):
        b = torch.ones(n, dtype=torch.float64)
        for name, a in matrices(n).items():
            plain, side = a.numpy(), b.numpy()
            calls = {
                "fewbits": lambda a=a, b=b: solve(a, b),
                "torch": lambda a=a, b=b: torch.linalg.solve(a, b),
                "scipy": lambda a=plain, b=side: linalg.solve(a, b),
            }
            taken = seconds(calls, given.rounds)
            found = solve(a, b, full=True)
            rows.append(
                {
                    "n": n,
                    "matrix": name,
                    "seconds": taken["fewbits"],
                    "of_torch": taken["torch"] / taken["fewbits"],
                    "of_scipy": taken["scipy"] / taken["fewbits"],
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
