"""Blocks along the rows of a matrix: grouped, their largest values found, and numbers of blocks spread."""

from __future__ import annotations

import torch
from torch import Tensor

from fewbits.formats import Format
from fewbits.formats.format import Size


def scale_size(format: Format) -> Size:
    """Return how many values along a row share a scale; 1 for a format without scales."""
    scales = format.groups.scales
    return 1 if scales is None else scales.size


def blocks_of(x: Tensor, size: Size) -> Tensor:
    """Return a matrix grouped as (lines, blocks, size), the last block of a line filled with zeros."""
    if size == "tensor":
        return x.reshape(1, 1, -1)
    rows, n = x.shape
    width = n if isinstance(size, str) else size
    count = -(-n // width)
    return torch.nn.functional.pad(x, (0, count * width - n)).reshape(rows, count, width)


def spread(per_block: Tensor, size: Size, shape: torch.Size) -> Tensor:
    """Return numbers of blocks, (lines, blocks), for each value of a matrix of this shape."""
    if isinstance(size, str):
        return per_block.expand(shape)
    return per_block.repeat_interleave(size, dim=1)[:, : shape[1]]


def anchors(w: Tensor, size: Size) -> Tensor:
    """Return where the largest magnitude of each block is, the first of several: booleans like w."""
    places = blocks_of(w.abs(), size)
    mask = torch.zeros(places.shape, dtype=torch.bool, device=w.device)
    mask.scatter_(2, places.argmax(dim=2, keepdim=True), True)
    rows, n = w.shape
    return mask.reshape(w.shape) if size == "tensor" else mask.reshape(rows, -1)[:, :n]
