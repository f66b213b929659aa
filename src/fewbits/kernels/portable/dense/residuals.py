"""Residuals in about twice the precision of float64, and the magnitudes of a matrix, by operations of torch.

Magnitudes equal the definition, sums of them up to their order. Residuals have its bound: the same exact
products, summed as a tree in place of eight lanes, which is a few large operations in place of many small.
"""

from __future__ import annotations

import torch

_AT_ONCE = 1 << 22  # products; temporaries are a dozen times as many float64


def residuals(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return b - A x and |A| |x| + |b|, each (k, m), of A, (m, n), x, (k, n), and b, (k, m), all float64."""
    rows = max(1, _AT_ONCE // max(1, x.numel()))
    parts = [
        _residual(a[i : i + rows], x[:, None], b[:, i : i + rows]) for i in range(0, max(len(a), 1), rows)
    ]
    return torch.cat([r for r, _ in parts], 1), torch.cat([sizes for _, sizes in parts], 1)


def _residual(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    high, low = exact_product(a, x)
    sizes = high.abs().sum(-1) + b.abs()
    while high.shape[-1] > 1:
        half = high.shape[-1] // 2
        one, other = high[..., :half], high[..., half : 2 * half]
        summed = one + other
        off = low[..., :half] + low[..., half : 2 * half] + rounded_off(one, other, summed)
        high, low = (torch.cat([s, v[..., 2 * half :]], -1) for s, v in ((summed, high), (off, low)))
    high, low = high.sum(-1), low.sum(-1)
    total = b - high
    return total + (rounded_off(b, -high, total) - low), sizes


def rounded_off(a: torch.Tensor, b: torch.Tensor, summed: torch.Tensor) -> torch.Tensor:
    """Return what a + b rounds off (Knuth)."""
    of_b = summed - a
    return (a - (summed - of_b)) + (b - of_b)


def exact_product(a: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a x rounded, and what that rounds off (Dekker); each operation is rounded by itself."""
    (a_high, a_low), (x_high, x_low) = _halves(a), _halves(x)
    product = a * x
    return product, ((a_high * x_high - product) + a_high * x_low + a_low * x_high) + a_low * x_low


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    far = x * (2.0**27 + 1)
    high = far - (far - x)
    return high, x - high


def extents(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the largest magnitude and the sum of magnitudes of each row, and the largest of each column.

    A NaN is in no maximum, but in the sum of its row.
    """
    sizes = a.abs()
    there = torch.where(sizes.isnan(), 0.0, sizes)
    return there.amax(1), sizes.sum(1), there.amax(0)
