"""Weights on the wire as they are held: the bytes of a tensor, or of the parts that its format packs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fewbits.recipes import Recipe
from fewbits.recipes.parameter_marks import is_rounded
from fewbits.tensor import NarrowTensor, quantize


def packed(p: torch.Tensor, recipe: Recipe | None) -> NarrowTensor | None:
    """Return a parameter packed in the format in which its recipe holds it.

    Returns:
        None where it is held in a dtype of torch, which travels as it is. The values may be others than those
        of the parameter: see :func:`is_exact`.
    """
    target = None if recipe is None or not is_rounded(p) else recipe.parameter
    if target is None or not p.ndim or p.dtype != torch.float32 or not p.numel():
        return None
    return quantize(p.detach(), target.format, axis=-1, scale_rule=target.scale_rule)


def is_exact(q: NarrowTensor, p: torch.Tensor) -> bool:
    """Return whether the packed tensor has every bit of the parameter, and is smaller."""
    same = torch.equal(q.dense().view(torch.int32), p.detach().contiguous().view(torch.int32))
    return same and sum(part.nbytes for part in parts(q)) < p.nbytes


def parts(x: torch.Tensor) -> list[torch.Tensor]:
    """Return the ordinary tensors that a tensor consists of."""
    return [part for part in x.pieces if part is not None] if isinstance(x, NarrowTensor) else [x]


def octets(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the bytes of some tensors in a row, (n,) uint8."""
    rows = [part.detach().contiguous().reshape(-1).view(torch.uint8) for x in tensors for part in parts(x)]
    return torch.cat(rows) if rows else torch.empty(0, dtype=torch.uint8)


def refill_(tensors: Sequence[torch.Tensor], row: torch.Tensor) -> None:
    """Write the bytes that :func:`octets` returned for tensors of the same shapes and formats into these."""
    every = [part for x in tensors for part in parts(x)]
    for part, run in zip(every, row.split([part.nbytes for part in every]), strict=True):
        part.copy_(run.clone().view(part.dtype).view(part.shape))  # a copy begins where its dtype may
