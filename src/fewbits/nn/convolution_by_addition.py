"""The three products of a convolution as products of matrices, for recipes that do not multiply."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn.functional import fold, unfold

from fewbits.nn.products_by_addition import product_by_addition


class Geometry(NamedTuple):
    """Where the windows of a convolution lie; one number for each spatial axis.

    ``longer`` is what a transposed convolution's result has beyond its windows, on one side; None for a
    convolution.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    longer: tuple[int, ...] | None = None

    def flat(self) -> dict[str, tuple[int, ...]]:
        """Return what ``unfold`` takes, which knows two spatial axes only."""
        if len(self.stride) == 2:
            return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        return {"stride": (1, *self.stride), "padding": (0, *self.padding), "dilation": (1, *self.dilation)}


def convolution(x: torch.Tensor, weight: torch.Tensor, geometry: Geometry, size: torch.Size) -> torch.Tensor:
    """Return the convolution, of shape ``size``."""
    columns = _columns(x, weight, geometry)
    rows = torch.unflatten(weight, 0, (geometry.groups, -1)).flatten(2).expand(len(x), -1, -1, -1)
    return product_by_addition(rows, columns).reshape(size)


def of_input(g: torch.Tensor, weight: torch.Tensor, geometry: Geometry, size: torch.Size) -> torch.Tensor:
    """Return the gradient of the input, of shape ``size``, from the result's gradient ``g``."""
    rows = torch.unflatten(weight, 0, (geometry.groups, -1)).flatten(2).mT.expand(len(g), -1, -1, -1)
    columns = product_by_addition(rows, torch.unflatten(g, 1, (geometry.groups, -1)).flatten(3))
    return fold(columns.flatten(1, 2), _flat(size[2:]), _flat(weight.shape[2:]), **geometry.flat()).reshape(
        size
    )


def of_weight(g: torch.Tensor, x: torch.Tensor, geometry: Geometry, size: torch.Size) -> torch.Tensor:
    """Return the gradient of the weight, of shape ``size``: a sum over batch and positions."""
    columns = _columns(x, torch.empty(size, device="meta"), geometry).permute(1, 0, 3, 2).flatten(1, 2)
    rows = torch.unflatten(g, 1, (geometry.groups, -1)).flatten(3).permute(1, 2, 0, 3).flatten(2)
    return product_by_addition(rows, columns).reshape(size)


def _columns(x: torch.Tensor, weight: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """Return the windows of x, (batch, groups, what a result sums over, positions)."""
    image = x if x.dim() == 4 else x.unsqueeze(2)
    columns = unfold(image, _flat(weight.shape[2:]), **geometry.flat())
    return torch.unflatten(columns, 1, (geometry.groups, -1))


def _flat(size: torch.Size) -> tuple[int, ...]:
    return tuple(size) if len(size) == 2 else (1, *size)
