"""Norms of layers, computed by the processes that hold them all, each of its share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh

from fewbits.errors import ArgumentError
from fewbits.typing import ProcessGroup

Norms = tuple[float, float] | tuple[torch.Tensor, torch.Tensor]
"""Of the weights of a layer, and of its gradient: numbers, or () float32 on the device of the layer."""


def shared_norms(sizes: Sequence[int], norms: Callable[[int], Norms], group: ProcessGroup) -> list[Norms]:
    """Return the norms of all layers, the same bits on every process.

    Shi et al., Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters, MLSys 2021
    (parallel tensor operator): layers are dealt out, and one all-gather brings the results.

    Args:
        sizes: of the layers, in values: the same on each process.
        norms: computes those of a layer, by its number; float32.
        group: a process group, or a mesh of one dimension; None: this process computes all.

    Raises:
        ArgumentError: this process is not in the group.
    """
    if group is None:
        return [norms(i) for i in range(len(sizes))]
    among = group.get_group() if isinstance(group, DeviceMesh) else group
    processes, rank = distributed.get_world_size(among), distributed.get_rank(among)
    if rank < 0:
        raise ArgumentError("this process is not in the group of LARS; give each process a group of its own")
    shares = dealt(sizes, processes)
    device = "cuda" if distributed.get_backend(among) == "nccl" else "cpu"
    mine = torch.zeros(max(map(len, shares)), 2, dtype=torch.float32, device=device)
    for place, i in enumerate(shares[rank]):
        mine[place] = torch.stack([torch.as_tensor(x, dtype=torch.float32) for x in norms(i)])
    gathered = [torch.empty_like(mine) for _ in range(processes)]
    distributed.all_gather(gathered, mine, group=among)
    found: list[Norms] = [(0.0, 0.0)] * len(sizes)
    for share, rows in zip(shares, gathered, strict=True):
        # Rows beyond a share are of none; what lies on a device is not read.
        pairs = rows.tolist() if rows.device.type == "cpu" else rows.unbind()
        for i, (w, g) in zip(share, pairs, strict=False):
            found[i] = (w, g)
    return found


def dealt(sizes: Sequence[int], processes: int) -> list[list[int]]:
    """Return the numbers of the layers of each process: the largest first, to who has least so far."""
    shares: list[list[int]] = [[] for _ in range(processes)]
    loads = [0] * processes
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        least = loads.index(min(loads))
        shares[least].append(i)
        loads[least] += sizes[i]
    return shares
