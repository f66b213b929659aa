"""Scaled dot-product attention as a module, so that its two products have a name and can be narrow."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fewbits.nn.layer_precision import LayerPrecision
from fewbits.nn.products import attention_product
from fewbits.nn.straight_through import transformed


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
        scores = attention_product(query, key.mT, self.precision, "result")
        if scores.dtype == torch.float32 or transformed() or torch.compiler.is_compiling():
            p = _scaled(scores, query.shape[-1]).softmax(-1).to(scores.dtype)
        else:
            # Only the first: a name for the other one would keep it while the product computes.
            p = _CausalSoftmax.apply(scores, query.shape[-1])[0]  # type: ignore[no-untyped-call]  # torch gives apply no types
        return attention_product(p, value, self.precision, "left")


def _scaled(scores: torch.Tensor, features: int) -> torch.Tensor:
    """Return scores / sqrt(features) in new float32 memory, later positions at minus infinity."""
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    limit = torch.full(scores.shape[-2:], math.inf, device=scores.device).masked_fill_(later, -math.inf)
    # Every position sees itself: no row is without a score. In place: new memory costs more than minima.
    # Whatever sum lies beyond the diagonal, infinite or never computed, it becomes minus infinity.
    return _copied(scores).div_(math.sqrt(features)).clamp_(max=limit)


def _copied(x: torch.Tensor) -> torch.Tensor:
    """Return ``x`` in new float32 memory by rows: a softmax into given memory takes it for that."""
    return x.to(torch.float32, copy=True, memory_format=torch.contiguous_format)


class _CausalSoftmax(torch.autograd.Function):
    """The same steps as torch's own, each in the memory of the one before."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, features: int) -> tuple[torch.Tensor, torch.Tensor]:
        wide = _scaled(scores, features)
        torch.softmax(wide, -1, out=wide)
        ctx.save_for_backward(wide)  # a result as well: a second derivative passes through it
        ctx.scale, ctx.dtype = math.sqrt(features), scores.dtype
        ctx.set_materialize_grads(False)
        return wide.to(scores.dtype), wide

    @staticmethod
    def backward(
        ctx: Any, gradient: torch.Tensor | None, of_wide: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, None]:
        (wide,) = ctx.saved_tensors
        given = [g for g in (gradient, of_wide) if g is not None]
        if not given:
            return None, None
        whole = _copied(given[0])
        for other in given[1:]:
            whole = whole + other
        if torch.is_grad_enabled() or _batched(whole):
            back = torch._softmax_backward_data(whole, wide, -1, torch.float32)
            return (back / ctx.scale).to(ctx.dtype), None
        torch.ops.aten._softmax_backward_data.out(whole, wide, -1, torch.float32, grad_input=whole)
        return whole.div_(ctx.scale).to(ctx.dtype), None


def _batched(x: torch.Tensor) -> bool:
    """Return whether ``x`` is a batch that a vmap passes on as one, which no operation writes into memory."""
    return torch._C._functorch.is_batchedtensor(x) or torch._C._functorch.is_legacy_batchedtensor(x)


def probabilities(scores: torch.Tensor, mask: torch.Tensor | None, features: int) -> torch.Tensor:
    """Return the softmax of scores / sqrt(features) + mask in the dtype of scores; computed in float32."""
    wide = scores.float() / math.sqrt(features)
    if mask is None:
        return wide.softmax(-1).to(scores.dtype)
    wide = wide + mask
    # The softmax of nothing is NaN, and so is its gradient, whatever is done with it afterwards.
    nothing = (wide == -math.inf).all(-1, keepdim=True)
    return wide.masked_fill(nothing, 0).softmax(-1).masked_fill(nothing, 0).to(scores.dtype)
