"""Scaled dot-product attention as a module, so that its two products have a name and can be narrow."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from fewbits.nn.layer_precision import LayerPrecision
from fewbits.nn.products import attention_product


class DotProductAttention(nn.Module):
    """softmax(q k^T / sqrt(d)) v, causal: no position sees a later one."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return (..., time, d) of queries, keys and values, each (..., time, d)."""
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


class NarrowDotProductAttention(DotProductAttention):
    """The same with narrow operands in both products, forward and backward."""

    precision: LayerPrecision

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return (..., time, d) in the recipe's vector format."""
        scores = attention_product(query, key.mT, self.precision)
        mask = torch.full(scores.shape[-2:], -math.inf, dtype=torch.float32, device=scores.device).triu(1)
        # Every position sees itself: no row is without a score. In place: new memory costs more than sums.
        wide = scores.to(torch.float32, copy=True).div_(math.sqrt(query.shape[-1])).add_(mask)
        return attention_product(wide.softmax(-1).to(scores.dtype), value, self.precision)


def probabilities(scores: torch.Tensor, mask: torch.Tensor | None, features: int) -> torch.Tensor:
    """Return the softmax of scores / sqrt(features) + mask in the dtype of scores; computed in float32."""
    wide = scores.float() / math.sqrt(features)
    if mask is None:
        return wide.softmax(-1).to(scores.dtype)
    wide = wide + mask
    # The softmax of nothing is NaN, and so is its gradient, whatever is done with it afterwards.
    nothing = (wide == -math.inf).all(-1, keepdim=True)
    return wide.masked_fill(nothing, 0).softmax(-1).masked_fill(nothing, 0).to(scores.dtype)
