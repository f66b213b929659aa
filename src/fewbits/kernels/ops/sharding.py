"""Sharding rules of rounding for torch.distributed.tensor.

Values that share a scale stay on one process. If a part would round differently than within the full tensor,
each process gathers the full tensor. Results therefore equal those of one process bit for bit.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from fewbits.formats import Format, shares_scale
from fewbits.kernels.bits.options import read_options

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(x: object) -> TypeGuard[DTensor]:
    """Return whether ``x`` is a DTensor, without importing torch.distributed.tensor."""
    tensor = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and isinstance(x, tensor.DTensor)


def gathered(x: torch.Tensor) -> torch.Tensor:
    """Return the full tensor of ``x``, gathered from all processes, each of which has to call this.

    A sum or a norm of shards has to come through here before it is a number: each process has its part of it.
    """
    return x.full_tensor() if is_sharded(x) else x


def rounds_alone(format: Format, axis: int, rounding: str, x: Any, dim: int) -> bool:
    """Whether the parts of a DTensor cut along ``dim`` round as in the whole, blocks along ``axis``."""
    if rounding == "stochastic" or shares_scale(format, "tensor"):  # a value's draw hangs on its place
        return False
    return keeps_blocks(format, axis, x, dim)


def keeps_blocks(format: Format, axis: int, x: Any, dim: int) -> bool:
    """Whether a DTensor cut along ``dim`` is cut between blocks; a scale of the whole tensor is no block."""
    sizes = {group.size for group in format.groups.shared} - {"tensor"}
    if dim != axis or not format.groups.shared:
        return True
    if "channel" in sizes or x.device_mesh.ndim != 1:
        return not sizes
    part = -(-x.shape[dim] // x.device_mesh.size())  # of each process but the last
    return part >= x.shape[dim] or all(part % int(n) == 0 for n in sizes)


@cache
def register() -> None:
    """Tell torch.distributed.tensor; called with the first DTensor."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    from fewbits.formats import parse

    def placements(
        x: Any, axis: int, format: str, options: str, *rest: Any
    ) -> list[tuple[list[Any], list[Any]]]:
        others = [None] * (3 + len(rest))
        fmt, front = parse(format), axis % max(len(x.shape), 1)
        whole = [([Replicate()], [Replicate(), *others])]
        return whole + [
            ([Shard(dim)], [Shard(dim), *others])
            for dim in range(len(x.shape))
            if rounds_alone(fmt, front, read_options(options, 0).rounding, x, dim)
        ]

    register_sharding(torch.ops.fewbits.fake_quantize.default)(placements)
