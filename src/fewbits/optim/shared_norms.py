"""Norms of layers, computed by the processes that hold them all, each of its share."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh

from fewbits.errors import ArgumentError
from fewbits.typing import ProcessGroup

Norms = tuple[float, float] | tuple[torch.Tensor, torch.Tensor]
"""Of the weights of a layer, and of its gradient: numbers, or () float32 on the device of the layer."""


def shared_norms(
    sizes: Sequence[int], due: Sequence[bool], norms: Callable[[int], Norms], group: ProcessGroup
) -> list[Norms]:
    """Return the norms of all layers that are due, in their order, the same bits on every process.

    Shi et al., Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters, MLSys 2021
    (parallel tensor operator): layers are dealt out, and one all-gather brings the results.

    Args:
        sizes: of the layers, in values: the same on each process.
        due: whether each layer has a gradient: the same on each process, which the CPU's backend sees.
        norms: computes those of a layer, by its number; float32.
        group: a process group, or a mesh of one dimension; None: this process computes all.

    Raises:
        ArgumentError: this process is not in the group, or processes have gradients of different layers.
    """
    if group is None:
        return [norms(i) for i, has in enumerate(due) if has]
    among = group.get_group() if isinstance(group, DeviceMesh) else group
    processes, rank = distributed.get_world_size(among), distributed.get_rank(among)
    if rank < 0:
        raise ArgumentError("this process is not in the group of LARS; give each process a group of its own")
    shares = dealt(sizes, processes)
    device = "cuda" if distributed.get_backend(among) == "nccl" else "cpu"
    # Layers without a gradient have rows too: processes that differ in them send as many bytes, and say so.
    mine = torch.zeros(1 + max(map(len, shares)), 2, dtype=torch.float32, device=device)
    if device == "cpu":
        mine[0] = torch.tensor(_digest(sizes, due), dtype=torch.float32)
    for place, i in enumerate(shares[rank], start=1):
        if due[i]:
            mine[place] = torch.stack([torch.as_tensor(x, dtype=torch.float32) for x in norms(i)])
    gathered = [torch.empty_like(mine) for _ in range(processes)]
    distributed.all_gather(gathered, mine, group=among)
    found: list[Norms] = [(0.0, 0.0)] * len(sizes)
    for other, (share, rows) in enumerate(zip(shares, gathered, strict=True)):
        if device == "cpu" and not torch.equal(rows[0], gathered[0][0]):
            raise ArgumentError(
                f"ranks 0 and {other} of the group of LARS have gradients of different layers, and share"
                " their norms; average the gradients before the step, or leave group out"
            )
        # Rows beyond a share are of none; what lies on a device is not read.
        pairs = rows[1:].tolist() if device == "cpu" else rows[1:].unbind()
        for i, (w, g) in zip(share, pairs, strict=False):
            found[i] = (w, g)
    return [pair for pair, has in zip(found, due, strict=True) if has]


def _digest(sizes: Sequence[int], due: Sequence[bool]) -> tuple[int, int]:
    """Return two numbers of 16 bits, which float32 holds, that tell lists of layers apart."""
    found = zlib.crc32(repr([*zip(sizes, due, strict=True)]).encode())
    return found >> 16, found & 0xFFFF


def dealt(sizes: Sequence[int], processes: int) -> list[list[int]]:
    """Return the numbers of the layers of each process: the largest first, to who has least so far."""
    shares: list[list[int]] = [[] for _ in range(processes)]
    loads = [0] * processes
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        least = loads.index(min(loads))
        shares[least].append(i)
        loads[least] += sizes[i]
    return shares
