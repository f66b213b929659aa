"""Reproducible initial values, by exact operations of torch."""

from __future__ import annotations

import torch

from fewbits.kernels.portable.values.stochastic import draws


def counter_uniform(seed: int, position: int, n: int, unit: float, device: torch.device) -> torch.Tensor:
    """Return float32 ``(n,)`` as kernels/reference/values/counter_uniform.py defines."""
    drawn = draws(n, seed, 32, device, position)
    odd = 2 * (drawn >> 8).int() + 1 - (1 << 24)
    return odd.float() * torch.full((), unit, dtype=torch.float32, device=device)
