"""Reproducible initial values on any device: compiled on the CPU, integer operations of torch elsewhere."""

from __future__ import annotations

import torch

from fewbits.kernels.arrays import values
from fewbits.kernels.ops.backends import active_backend
from fewbits.kernels.ops.tensors import array
from fewbits.kernels.portable.values.counter_uniform import counter_uniform as by_torch

_AT_ONCE = 1 << 20  # values; temporaries are four words for each four of them


def counter_uniform(seed: int, position: int, n: int, unit: float, device: torch.device) -> torch.Tensor:
    """Return float32 ``(n,)``, equal on every device: kernels/reference/values/counter_uniform.py."""
    out = torch.empty(n, dtype=torch.float32, device=device)
    if active_backend(device) == "native":
        values.counter_uniform(seed, position, unit, array(out))
        return out
    for start in range(0, n, _AT_ONCE):
        some = min(_AT_ONCE, n - start)
        out[start : start + some] = by_torch(seed, position + start, some, unit, device)
    return out
