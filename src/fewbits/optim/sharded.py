"""Parameters that several processes hold in parts (fully_shard): each packs the state of what it holds."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed

from fewbits.formats import Format, shares_scale
from fewbits.kernels.ops.sharding import is_sharded, keeps_blocks


def local(x: torch.Tensor) -> torch.Tensor:
    """Return what this process holds of a tensor: all of it where it is not sharded."""
    if not is_sharded(x):
        return x
    return x.to_local()


def packable(x: torch.Tensor, format: Format) -> tuple[torch.Tensor, float | None]:
    """Return what this process packs of a tensor, and the largest magnitude of the whole where it counts.

    That is what it holds, and the same bits as a part of the whole packed; but where a block would be cut, as
    happens along the only axis of a bias, each process packs the whole.
    """
    if not is_sharded(x):
        return x, None
    cut = [place.dim for place in x.placements if place.is_shard()]  # type: ignore[attr-defined]  # of shards only
    if not all(keeps_blocks(format, x.ndim - 1, x, dim) for dim in cut):
        return x.full_tensor(), None
    return local(x), _largest(x) if shares_scale(format, "tensor") else None


def of_one(dense: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor sharded as ``like`` is, of the whole or of what :func:`packable` gave."""
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
