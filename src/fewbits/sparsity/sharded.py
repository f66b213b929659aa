"""Tensors that lie in parts on several machines: each one's part, the whole, and a whole cut alike."""

from __future__ import annotations

import sys
from typing import Any

import torch


def is_sharded(x: torch.Tensor) -> bool:
    """Whether ``x`` is a DTensor, without importing its package for those who have none."""
    home: Any = sys.modules.get("torch.distributed.tensor")
    return home is not None and isinstance(x, home.DTensor)


def local(x: torch.Tensor) -> torch.Tensor:
    """Return the part of ``x`` on this machine, in the same memory; all of an ordinary tensor."""
    part: torch.Tensor = x.to_local() if is_sharded(x) else x  # type: ignore[attr-defined]
    return part


def whole(x: torch.Tensor) -> torch.Tensor:
    """Return all of ``x``, gathered from every machine; each has to call this."""
    gathered: torch.Tensor = x.full_tensor() if is_sharded(x) else x  # type: ignore[attr-defined]
    return gathered


def cut_like(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """Return ``x``, all of which every machine has, cut as ``p`` is."""
    if not is_sharded(p) or is_sharded(x):
        return x
    from torch.distributed.tensor import DTensor, Replicate

    mesh = p.device_mesh  # type: ignore[attr-defined]
    everywhere = DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(mesh, p.placements)  # type: ignore[attr-defined]
