"""Tensors that lie in parts on several machines: each one's part, the whole, and a whole cut alike."""

from __future__ import annotations

import torch

from fewbits.kernels.ops.sharding import is_sharded


def local(x: torch.Tensor) -> torch.Tensor:
    """Return the part of ``x`` on this machine, in the same memory; all of an ordinary tensor."""
    return x.to_local() if is_sharded(x) else x


def gathered(x: torch.Tensor) -> torch.Tensor:
    """Return all of ``x``, gathered from every machine; each has to call this."""
    return x.full_tensor() if is_sharded(x) else x


def cut_like(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """Return ``x``, all of which every machine has, cut as ``p`` is."""
    if not is_sharded(p) or is_sharded(x):
        return x
    from torch.distributed.tensor import DTensor, Replicate

    mesh = p.device_mesh
    everywhere = DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(mesh, p.placements)
