"""Sharded parameters (fully_shard): each process packs the state of its own shard."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed

from fewbits.formats import Format, shares_scale
from fewbits.kernels.ops.sharding import is_sharded, keeps_blocks


def processes() -> int:
    """Return how many processes there are; one without a process group."""
    started = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if started else 1


def local(x: torch.Tensor) -> torch.Tensor:
    """Return the local shard of a tensor; the tensor itself if it is not sharded."""
    if not is_sharded(x):
        return x
    return x.to_local()


def packable(x: torch.Tensor, format: Format) -> tuple[torch.Tensor, float | None]:
    """Return what this process packs of a tensor, and the largest magnitude of all shards if needed.

    It packs its shard, which gives the same bits as packing the full tensor. Where sharding cuts a block, as
    along the only axis of a bias, every process packs the full tensor.
    """
    if not is_sharded(x):
        return x, None
    cut = [place.dim for place in x.placements if place.is_shard()]  # type: ignore[attr-defined]  # of shards only
    if not all(keeps_blocks(format, x.ndim - 1, x, dim) for dim in cut):
        return x.full_tensor(), None
    return local(x), _largest(x) if shares_scale(format, "tensor") else None


def of_one(dense: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return ``dense``, a full tensor or what :func:`packable` returned, sharded like ``like``."""
    if not is_sharded(like):
        return dense
    from torch.distributed.tensor import DTensor, distribute_tensor

    mesh, places = like.device_mesh, like.placements
    if dense.shape == local(like).shape:
        return DTensor.from_local(
            dense, mesh, places, run_check=False, shape=like.shape, stride=like.stride()
        )
    return distribute_tensor(dense, mesh, places, src_data_rank=None)  # every process has the whole


def _largest(x: Any) -> float:
    """Return the largest finite magnitude in all parts of a DTensor."""
    mine = local(x).abs()
    most = torch.where(mine.isfinite(), mine, 0.0).amax() if mine.numel() else mine.new_zeros(())
    for dim, place in enumerate(x.placements):
        if place.is_shard():
            distributed.all_reduce(most, distributed.ReduceOp.MAX, group=x.device_mesh.get_group(dim))
    return float(most)
