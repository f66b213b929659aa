"""Attention."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.functional import dropout, pad

from fewbits.errors import ArgumentError
from fewbits.kernels.ops.no_autocast import no_autocast
from fewbits.nn.layer_precision import LayerPrecision
from fewbits.nn.layers.dot_product import probabilities
from fewbits.nn.products import attention_product, converted, linear, viewed


class NarrowMultiheadAttention(nn.MultiheadAttention):
    """Multi-head attention with narrow operands in its projections, in q k^T and in p v.

    The scores are scaled and masked, and their softmax is taken, in float32; p takes the vector format.
    ``is_causal`` is a hint, as it is for torch: it is the mask that counts. A query that may attend to
    nothing gets p = 0, also where torch returns NaN.
    """

    precision: LayerPrecision

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return attention and its weights in the recipe's vector format.

        Args:
            query: (L, N, embed_dim), with batch_first (N, L, embed_dim), unbatched (L, embed_dim).
            key: the same of kdim, with S in the place of L.
            value: the same of vdim, with S in the place of L.
            key_padding_mask: (N, S), unbatched (S,): True, or what is added to the scores.
            need_weights: whether to return weights too.
            attn_mask: (L, S) or (N * num_heads, L, S): True, or what is added to the scores.
            average_attn_weights: whether weights are averaged over heads.
            is_causal: says that ``attn_mask`` is causal.

        Returns:
            A tensor of query's shape; weights of (N, L, S), (N, num_heads, L, S) if not averaged, without N
            if unbatched, or None.

        Raises:
            ArgumentError: shapes that do not fit, a mask that is neither bool nor float, or is_causal
                without a mask.
        """
        if is_causal and attn_mask is None:
            raise ArgumentError("is_causal=True is a hint about attn_mask, and there is none; give the mask")
        batched = query.dim() == 3
        if not batched:
            query, key, value = (t.unsqueeze(0) for t in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        mask = self._mask(query, key, value, attn_mask, key_padding_mask)
        q, k, v = self._heads(query, key, value)
        scores = attention_product(q, k.mT, self.precision)
        p = dropout(probabilities(scores, mask, self.head_dim), self.dropout, self.training)
        mixed = attention_product(p, v, self.precision).transpose(1, 2).flatten(2)
        output = linear(mixed, self.out_proj.weight, self.out_proj.bias, self.precision)
        weights = None
        if need_weights:
            weights = p.mean(1) if average_attn_weights else p
        if not batched:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1), weights

    def _heads(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q, k and v, (N, num_heads, length, features of a head)."""
        if self._qkv_same_embed_dim:
            weights = viewed(self.in_proj_weight, self.precision).chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        bias: torch.Tensor | None = self.in_proj_bias  # torch's annotation does not say that it may be None
        biases = (None,) * 3 if bias is None else viewed(bias, self.precision).chunk(3)
        q, k, v = (
            linear(x, w, b, self.precision)
            for x, w, b in zip((query, key, value), weights, biases, strict=True)
        )
        if self.bias_k is not None:
            assert self.bias_v is not None
            with no_autocast(k):  # which refuses to join the 16-bit floats that are not its own
                k = torch.cat([k, converted(self.bias_k, k.dtype).expand(len(k), -1, -1)], 1)
                v = torch.cat([v, converted(self.bias_v, v.dtype).expand(len(v), -1, -1)], 1)
        if self.add_zero_attn:
            k, v = pad(k, (0, 0, 0, 1)), pad(v, (0, 0, 0, 1))
        q, k, v = (torch.unflatten(t, -1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        return q, k, v

    def _mask(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None,
        key_padding_mask: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """Return what is added to the scores, of a shape that broadcasts to (N, num_heads, L, S)."""
        n, length, _ = query.shape
        s = key.shape[1]
        if key.shape[:2] != value.shape[:2] or len(key) != n:
            raise ArgumentError(
                f"query, key and value have batch and length {tuple(query.shape[:2])},"
                f" {tuple(key.shape[:2])} and {tuple(value.shape[:2])}; expected one batch, and key and value"
                " of one length"
            )
        allowed = ((length, s), (n * self.num_heads, length, s))
        if attn_mask is not None and attn_mask.shape not in allowed:
            raise ArgumentError(
                f"attn_mask has shape {tuple(attn_mask.shape)}; expected {allowed[0]} or {allowed[1]}"
            )
        if key_padding_mask is not None and key_padding_mask.shape != (n, s):
            raise ArgumentError(
                f"key_padding_mask has shape {tuple(key_padding_mask.shape)}; expected {(n, s)}"
            )
        parts = []
        if attn_mask is not None:
            added = _added("attn_mask", attn_mask)
            parts.append(added if added.dim() == 2 else torch.unflatten(added, 0, (n, self.num_heads)))
        if key_padding_mask is not None:
            parts.append(_added("key_padding_mask", key_padding_mask)[:, None, None, :])
        if not parts:
            return None
        # What attention adds to the keys itself is never masked.
        more = (self.bias_k is not None) + self.add_zero_attn
        return pad(sum(parts[1:], parts[0]), (0, more))


def _added(name: str, mask: torch.Tensor) -> torch.Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=torch.float32).masked_fill(mask, -math.inf)
    if not mask.is_floating_point():
        raise ArgumentError(f"{name} has dtype {mask.dtype}; expected torch.bool or a floating-point type")
    return mask.float()
