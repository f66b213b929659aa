"""Sweep two-level block formats and keep those that no other beats in cost and in QSNR.

The sweep that led to MX9, MX6 and MX4 ("With Shared Microexponents, A Little Shifting Goes a Long Way",
section 4), with the area-times-memory proxy of fewbits in place of synthesized area.
"""

from itertools import product

import numpy as np

import fewbits as fb
from fewbits.formats import Bdr, area_memory_proxy


def variable_variance_gaussian(vectors: int, length: int, seed: int) -> np.ndarray:
    """Draw the test distribution of the paper: each vector N(0, s^2) with its own s from |N(0, 1)|."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((vectors, length)) * np.abs(rng.standard_normal((vectors, 1)))).astype(
        np.float32
    )


def sweep(x: np.ndarray) -> list[tuple[float, float, Bdr]]:
    """Return (proxy, QSNR, format) of every format of the sweep."""
    shapes = [
        s for s in product((2, 3, 4, 5, 6, 7), (8, 16, 32, 64), (0, 1, 2), (1, 2, 4, 8)) if s[3] <= s[1]
    ]
    formats = [Bdr(m, 8, k1, d2, k2) for m, k1, d2, k2 in shapes if d2 or k2 == 1]
    return [(area_memory_proxy(f), fb.qsnr(x, fb.fake_quantize(x, f)), f) for f in formats]


def front(points: list[tuple[float, float, Bdr]]) -> list[tuple[float, float, Bdr]]:
    """Return the points that none beats in both."""
    best, kept = -np.inf, []
    for point in sorted(points, key=lambda p: (p[0], -p[1])):
        if point[1] > best:
            best = point[1]
            kept.append(point)
    return kept


if __name__ == "__main__":
    points = sweep(variable_variance_gaussian(512, 256, seed=0))
    print(f"{len(points)} formats, {len(front(points))} on the front; cost: a proxy relative to FP8 E4M3")
    for proxy, decibels, fmt in front(points):
        print(f"{proxy:6.3f} proxy {decibels:6.2f} dB {fmt.bits_per_value:6.3f} bits  {fmt}")
