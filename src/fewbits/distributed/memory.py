"""Memory that messages and results lie in."""

from __future__ import annotations

import torch

from fewbits.kernels.ops.flat import empty_kept

_KEPT = 1 << 18  # bytes from which on new pages take longer than what is done with them
_CPU = torch.device("cpu")


def empty(n: int, dtype: torch.dtype, device: torch.device = _CPU) -> torch.Tensor:
    """Return an uninitialized tensor, (n,); on the CPU, if it is large, in memory kept from earlier ones."""
    fresh = device.type != "cpu" or n * dtype.itemsize < _KEPT
    return torch.empty(n, dtype=dtype, device=device) if fresh else empty_kept(n, dtype)


def lent(x: torch.Tensor) -> torch.Tensor | None:
    """Return ``x`` in a row that shares its memory, if float32 results can be written there."""
    fits = x.dtype == torch.float32 and x.is_contiguous()
    return x.detach().view(-1) if fits else None
