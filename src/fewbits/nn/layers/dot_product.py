"""Scaled dot-product attention as a module, so that its two products have a name and can be narrow."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from fewbits.nn.products import attention_product
from fewbits.nn.rules import Rules


class DotProductAttention(nn.Module):
    """softmax(q k^T / sqrt(d)) v, causal: no position sees a later one."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return (..., time, d) of queries, keys and values, each (..., time, d)."""
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


class NarrowDotProductAttention(DotProductAttention):
    """The same with narrow operands in both products, forward and backward."""

    rules: Rules

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return (..., time, d) in the recipe's vector format."""
        scale = 1 / math.sqrt(query.shape[-1])
        scores = attention_product(query * scale, key.mT, self.rules)
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        weights = scores.masked_fill(later, -math.inf).softmax(-1)
        return attention_product(weights, value, self.rules)
