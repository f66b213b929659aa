"""Narrow products in the attention of Hugging Face's models, which is written as functions."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from fewbits.errors import ArgumentError
from fewbits.nn import attention_product
from fewbits.nn.layer_precision import LayerPrecision

Model = TypeVar("Model", bound=PreTrainedModel)

_NAME = "fewbits"
# What the mask says already, or what is about other things.
_HARMLESS = {
    *("is_causal", "sliding_window", "position_ids", "output_attentions", "use_cache", "cache_position"),
    *("output_hidden_states", "output_router_logits", "num_items_in_batch"),
}


def narrow_attention(model: Model) -> Model:
    """Make the two products of a prepared model's attention narrow, forward and backward.

    Their operands q and k, and the probabilities and v, are rounded as the recipe rounds activations, along
    the axis that the product sums over; the softmax is float32.

    Args:
        model: that :func:`fewbits.nn.prepare` was called with.

    Returns:
        The model itself.

    Raises:
        ArgumentError: the model was not prepared, its products were made narrow already, or its attention
            cannot be replaced by a function.
    """
    recipe = getattr(model, "fewbits_recipe", None)
    if recipe is None:
        raise ArgumentError(
            f"{type(model).__name__} was not prepared; call fewbits.prepare(model, recipe) first"
        )
    if any(hasattr(m, "fewbits_products") for m in model.modules()):
        raise ArgumentError(
            f"the products of {type(model).__name__} are narrow already, by narrow_products; leave one of"
            " them out"
        )
    layers = {n: m for n, m in model.named_modules() if hasattr(m, "is_causal") and hasattr(m, "scaling")}
    if not layers:
        raise ArgumentError(
            f"{type(model).__name__} has no attention that transformers lets others compute; only its layers"
            " are narrow"
        )
    model.set_attn_implementation(_NAME)
    for name, module in layers.items():
        module.fewbits_attention = LayerPrecision(recipe, name)
    return model


def _forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    **more: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (batch, time, heads, features) and the probabilities, as transformers calls such functions."""
    unknown = sorted(n for n, given in more.items() if given is not None and n not in _HARMLESS)
    if unknown:
        raise ArgumentError(
            f"{type(module).__name__} gives its attention {', '.join(unknown)}, which narrow attention"
            " does not know; leave narrow_attention out for this model"
        )
    precision = getattr(module, "fewbits_attention", None)
    if not isinstance(precision, LayerPrecision):
        raise ArgumentError(
            f"{type(module).__name__} under attention {_NAME!r} without a recipe; call"
            " narrow_attention(model)"
        )
    groups = query.shape[1] // key.shape[1]
    keys, values = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (key, value))
    scores = attention_product(query, keys.mT, precision)
    wide = scores.float() * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        wide = softcap * torch.tanh(wide / softcap)
    if attention_mask is not None:
        mask = attention_mask[..., : wide.shape[-1]]
        if mask.dtype == torch.bool:  # a caller's own of four axes, where True takes part
            wide = wide.masked_fill(mask.logical_not(), torch.finfo(wide.dtype).min)
        else:
            wide = wide + mask
    p = functional.dropout(wide.softmax(-1), dropout, module.training).to(scores.dtype)
    mixed = attention_product(p, values, precision)
    return mixed.transpose(1, 2).contiguous().to(query.dtype), p


AttentionInterface.register(_NAME, _forward)
AttentionMaskInterface.register(_NAME, eager_mask)
