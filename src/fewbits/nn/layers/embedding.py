"""Embeddings, and bags of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import embedding, embedding_bag

from fewbits.nn.layer_precision import LayerPrecision
from fewbits.nn.products import converted, viewed
from fewbits.nn.straight_through import rounded, transformed
from fewbits.recipes.rounding import hold


class NarrowEmbedding(nn.Embedding):
    """A lookup in a table that is rounded along the embedding axis as a forward weight.

    A lookup multiplies nothing, so its gradient is not rounded to a narrow format: it passes straight to the
    rows. ``max_norm`` renews the table itself, before it is rounded.
    """

    precision: LayerPrecision

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return (..., embedding_dim) in the recipe's vector format."""
        _renew(self, input)
        table = _rounded(viewed(self.weight, self.precision), self.precision)
        rows = embedding(
            input,
            table,
            self.padding_idx,
            scale_grad_by_freq=self.scale_grad_by_freq,
            sparse=self.sparse,
        )
        return rows.to(self.precision.dtype)


class NarrowEmbeddingBag(nn.EmbeddingBag):
    """Sums, means or largest rows of a table that is rounded along the embedding axis as a forward weight.

    Rows are combined in float32, with weights of samples as they are. Gradients pass straight to the rows.
    """

    precision: LayerPrecision

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return (bags, embedding_dim) in the recipe's vector format; arguments are torch's."""
        _renew(self, input)
        table = _rounded(viewed(self.weight, self.precision), self.precision)
        bags = embedding_bag(
            input,
            converted(table, torch.float32),
            offsets,
            scale_grad_by_freq=self.scale_grad_by_freq,
            mode=self.mode,
            sparse=self.sparse,
            per_sample_weights=None if per_sample_weights is None else per_sample_weights.float(),
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )
        return bags.to(self.precision.dtype)


@torch.no_grad()
def _renew(layer: NarrowEmbedding | NarrowEmbeddingBag, input: torch.Tensor) -> None:
    """Shorten the rows that are looked up to ``max_norm``, and hold the table as the recipe does."""
    if layer.max_norm is None:
        return
    torch.embedding_renorm_(layer.weight, input.contiguous(), layer.max_norm, layer.norm_type)
    hold(layer.weight, layer.precision.recipe.parameter)


def _rounded(weight: torch.Tensor, precision: LayerPrecision) -> torch.Tensor:
    if transformed():
        return rounded(weight, precision, "forward_weight", -1)
    result: torch.Tensor = _StraightThrough.apply(weight, precision)  # type: ignore[no-untyped-call]  # torch gives apply no types
    return result


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, precision: LayerPrecision) -> torch.Tensor:
        return precision.round("forward_weight", weight, -1).view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None
