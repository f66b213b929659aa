"""Reproducible initial values, by exact operations of torch."""

from __future__ import annotations

import torch

from fewbits.kernels.portable.values.threefry import words_of
from fewbits.kernels.reference.values.threefry import ROUNDS


def counter_uniform(seed: int, position: int, n: int, unit: float, device: torch.device) -> torch.Tensor:
    """Return float32 ``(n,)`` as kernels/reference/values/counter_uniform.py defines."""
    first, last = position // 64 * 16, (position + n + 63) // 64 * 16
    drawn = words_of(first, last, seed, ROUNDS, device)
    # 16 counters in a row are 64 draws: all their first words, then their second ones.
    flat = drawn.reshape(4, -1, 16).transpose(0, 1).reshape(-1)[position % 64 :][:n]
    odd = 2 * (flat >> 8 & 0xFFFFFF) + 1 - (1 << 24)
    return odd.float() * torch.tensor(unit, device=device)
