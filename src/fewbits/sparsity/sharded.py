"""Sharded tensors: the local shard, and a full tensor sharded like another one."""

from __future__ import annotations

import torch

from fewbits.kernels.ops.sharding import is_sharded


def local(x: torch.Tensor) -> torch.Tensor:
    """Return the local shard of ``x``, in the same memory; ``x`` itself if it is not sharded."""
    return x.to_local() if is_sharded(x) else x


def cut_like(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """Return ``x``, which every process has in full, sharded like ``p``."""
    if not is_sharded(p) or is_sharded(x):
        return x
    from torch.distributed.tensor import DTensor, Replicate

    mesh = p.device_mesh
    everywhere = DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(mesh, p.placements)
