"""Sums over the inputs of a layer, from which the error of its outputs follows for any weight."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from fewbits.ptq.hadamard import BlockHadamard
from fewbits.ptq.layers import ProductLayer

_ROWS = 4096  # vectors that are in float64 at once


class Moments:
    """The second moments of a layer's inputs, (groups, n, n) each, in float64.

    Attributes:
        gram: the sum of y y^T over the inputs y as the layer takes them: half of GPTQ's Hessian.
        cross: the sum of y x^T, x being the inputs before they are rounded; the gram itself if none are.
        wide: the sum of x x^T.
        count: vectors that were added.
        size: of the blocks in which inputs are rotated before all that; 0 for no rotation.
    """

    def __init__(
        self, layer: ProductLayer, rounded: Callable[[Tensor], Tensor] | None = None, size: int = 0
    ) -> None:
        self.layer, self.rounded, self.size, self.count = layer, rounded, size, 0
        groups, _, n = layer.matrices(layer.weight).shape
        device = None if layer.weight.is_meta else layer.weight.device  # None: it is not in memory yet
        zeros = torch.zeros(groups, n, n, dtype=torch.float64, device=device)
        self.gram = zeros
        self.cross, self.wide = (zeros.clone(), zeros.clone()) if rounded else (zeros, zeros)

    def add(self, x: Tensor) -> None:
        """Add the vectors of one input of the layer."""
        x = x.detach()
        if self.size:
            x = BlockHadamard(self.size, self.layer.input_axis).rotated(x)
        wide = self.layer.rows(x)
        taken = None if self.rounded is None else self.layer.rows(self.rounded(x))
        for at in range(0, wide.shape[1], _ROWS):
            xs = wide[:, at : at + _ROWS].double()
            ys = xs if taken is None else taken[:, at : at + _ROWS].double()
            self.gram += ys.mT @ ys
            if taken is not None:
                self.cross += ys.mT @ xs
                self.wide += xs.mT @ xs
        self.count += wide.shape[1]

    def rotated(self, size: int) -> Moments:
        """Return those of the inputs of a linear layer, none of them rounded, rotated in blocks of a size."""
        other = copy.copy(self)
        other.gram = BlockHadamard(size, -2).rotated(BlockHadamard(size).rotated(self.gram))
        other.cross = other.wide = other.gram
        other.size = size
        return other

    @property
    def is_finite(self) -> bool:
        """Whether all inputs were finite, and so large at most that their squares are."""
        return bool(torch.isfinite(self.gram).all() and torch.isfinite(self.wide).all())

    def power(self, w: Tensor) -> Tensor:
        """Return the sum of squares of each output before anything is rounded: (groups, outputs)."""
        return ((w @ self.wide) * w).sum(-1)

    def loss(self, w: Tensor, chosen: Tensor) -> Tensor:
        """Return the squared error of each output with chosen weights: (groups, outputs).

        Args:
            w: (groups, outputs, n) float64, the weights.
            chosen: of the same shape, those that are to take their place.
        """
        if self.rounded is None:
            return (((w - chosen) @ self.gram) * (w - chosen)).sum(-1)
        both = ((chosen @ self.cross) * w).sum(-1)
        return self.power(w) - 2 * both + ((chosen @ self.gram) * chosen).sum(-1)

    def best(self, w: Tensor, damping: float) -> Tensor:
        """Return the weights, of any value, with the smallest error where inputs are rounded; damped to w."""
        if self.rounded is None:
            return w
        n = w.shape[-1]
        mean = self.gram.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
        damp = torch.where(mean > 0, damping * mean, 1.0) * torch.eye(n, dtype=w.dtype, device=w.device)
        best: Tensor = torch.linalg.solve(self.gram + damp, (self.cross + damp) @ w.mT).mT
        return best
