"""Products without multiplications by exact operations of torch; reference/gemm/additions.py defines them."""

from __future__ import annotations

import torch

_MAGNITUDE = 0x7FFFFFFF
_ONE = 0x3F800000
_SMALLEST = 0x00800000
_LARGEST = 0x7F7FFFFF

_AT_ONCE = 1 << 22  # products: their sums of bit patterns are several times as large


def times(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a * b`` of broadcastable float32 tensors by one integer sum of their bit patterns."""
    x, y = a.view(torch.int32), b.view(torch.int32)
    of_a, of_b = x & _MAGNITUDE, y & _MAGNITUDE
    total = of_a.long() + of_b  # below 2^32
    there = (total >= _ONE + _SMALLEST) & (of_a != 0) & (of_b != 0)
    magnitude = (total - _ONE).clamp(max=_LARGEST).int()
    approximation = torch.where(there, magnitude | (x ^ y) & ~_MAGNITUDE, 0).view(torch.float32)
    finite = (of_a <= _LARGEST) & (of_b <= _LARGEST)
    return torch.where(finite, approximation, a * b)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b``, (m, k) times (k, n): products by :func:`times`, float32 sums in the order of k."""
    (m, k), n = a.shape, b.shape[1]
    y = a.new_zeros((m, n))
    together = max(1, _AT_ONCE // max(m * n, 1))
    for start in range(0, k, together):
        some = slice(start, start + together)
        # Contiguous, for the bits; by k first, so that each sum reads what lies side by side.
        left, right = a[:, some].t().contiguous(), b[some].contiguous()
        for products in times(left.unsqueeze(-1), right.unsqueeze(1)).unbind(0):
            y = y + products
    return y
