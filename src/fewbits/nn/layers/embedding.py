"""Embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import embedding

from fewbits.nn.products import viewed
from fewbits.nn.rules import Rules


class NarrowEmbedding(nn.Embedding):
    """A lookup in a table that is rounded along the embedding axis as a forward weight.

    A lookup multiplies nothing, so its gradient is not rounded to a narrow format: it passes straight to the
    rows. ``max_norm`` renews the table itself, before it is rounded.
    """

    rules: Rules

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return (..., embedding_dim) in the recipe's vector format."""
        if self.max_norm is not None:
            with torch.no_grad():
                torch.embedding_renorm_(self.weight, input.contiguous(), self.max_norm, self.norm_type)
        table: torch.Tensor = _StraightThrough.apply(viewed(self.weight, self.rules), self.rules)  # type: ignore[no-untyped-call]
        rows = embedding(
            input,
            table,
            self.padding_idx,
            scale_grad_by_freq=self.scale_grad_by_freq,
            sparse=self.sparse,
        )
        return rows.to(self.rules.dtype)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, rules: Rules) -> torch.Tensor:
        return rules.cast("forward_weight", weight, -1).view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None
