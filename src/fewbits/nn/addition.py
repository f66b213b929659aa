"""Products without multiplications: Mogami, Deep Neural Network Training Without Multiplications, 2020."""

from __future__ import annotations

import torch

_ONE = 0x3F800000
_MAGNITUDE = 0x7FFFFFFF
_TOGETHER = 1 << 22  # products at once


def times(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a * b`` of broadcastable float32 tensors by one integer sum of their bit patterns.

    The magnitude is the float whose bits are int(|a|) + int(|b|) - int(1.0), too small by up to a ninth of
    the product (Mitchell, 1962); what would fall below the smallest normal number is zero.
    """
    x, y = a.view(torch.int32), b.view(torch.int32)
    magnitude = (x & _MAGNITUDE).long() + (y & _MAGNITUDE) - _ONE
    there = (magnitude >= 1 << 23) & (a != 0) & (b != 0)
    bits = torch.where(there, magnitude.clamp(max=0x7F7FFFFF), 0).to(torch.int32)
    found: torch.Tensor = bits.view(torch.float32)
    return torch.where((x ^ y) < 0, -found, found)


def product_by_addition(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b``, (..., m, k) times (..., k, n), multiplied by :func:`times` and summed in float32."""
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    rows = max(1, _TOGETHER // max(1, k * n * max(1, a[..., 0, 0].numel())))
    columns = b.mT.unsqueeze(-3).contiguous()
    parts = [
        times(a[..., i : i + rows, :].unsqueeze(-2).contiguous(), columns).sum(-1) for i in range(0, m, rows)
    ]
    return torch.cat(parts, dim=-2) if parts else a.new_zeros(*a.shape[:-1], n)
